"""The recorder of a run, and what it measures besides its tokens."""

from outdo.algorithms.objectives.base import Objective
from outdo.config.recipe import Recipe
from outdo.data.formats import tools_of as tools_in
from outdo.data.prompts import Prompts
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.observability.reading.measure import Reading
from outdo.observability.reading.swaps import Text
from outdo.observability.record.recorder import Recorder
from outdo.trainer.environment import tools_of
from outdo.types import Prompt

OTHER_QUESTIONS = 32
"""Questions of a run of which words are taken to find out what answers read."""


def recorder_of(recipe: Recipe, policy: Policy, objective: Objective, prompts: Prompts[Prompt]) -> Recorder:
    """Return the recorder that a recipe describes."""
    reading = _reading(recipe, policy, prompts) if recipe.record.every else None
    return Recorder(policy, objective, seed=recipe.seed, reading=reading, **recipe.record.model_dump())


def _reading(recipe: Recipe, policy: Policy, prompts: Prompts[Prompt]) -> Reading:
    """Return what measures what answers read of their questions."""
    tools = tools_of(recipe.environment)

    def encode(prompt: Prompt, text: Text) -> list[int]:
        return encode_prompt(
            policy.tokenizer,
            text,
            template=recipe.data.prompt_template,
            system=recipe.data.system,
            tools=[*tools(prompt.columns), *tools_in(prompt.columns)],
            where=f"question {prompt.id}",
        )

    known = prompts.prompts
    count = min(OTHER_QUESTIONS, len(known))
    return Reading(policy, encode, [known[place * len(known) // count].text for place in range(count)])
