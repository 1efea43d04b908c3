"""What writes the hints of a run, for a teacher that reads one."""

from typing import Any

from outdo.config.recipe import Recipe
from outdo.data.formats import tools_of as tools_of_row
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.rollouts.hints import Hints
from outdo.run.assemble.environment import tools_of
from outdo.types import Prompt


def hints_of(recipe: Recipe, policy: Policy) -> Hints | None:
    """Return what writes the prompts that a teacher reads; None if no teacher has a hint.

    They are encoded as the questions are, but for their length, which only the model limits.
    """
    texts = [teacher.hint for teacher in recipe.teachers if teacher.hint is not None]
    if not texts:
        return None
    data, tools = recipe.data, tools_of(recipe.environment)

    def encode(prompt: Prompt, text: Any) -> tuple[int, ...]:
        ids = encode_prompt(
            policy.tokenizer,
            text,
            template=data.prompt_template,
            system=data.system,
            special_tokens=data.special_tokens,
            tools=[*tools(prompt.columns), *tools_of_row(prompt.columns)],
            where=f"the hint to question {prompt.id}",
        )
        return tuple(ids)

    def decode(token_ids: Any) -> str:
        return str(policy.tokenizer.decode(token_ids, skip_special_tokens=True))

    return Hints(texts[0], encode, decode, longest=policy.context)
