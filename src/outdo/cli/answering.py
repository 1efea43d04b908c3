"""How `outdo eval` and `outdo generate` prompt a model and sample from it: the arguments, the run, or the defaults."""

from collections.abc import Sequence
from dataclasses import dataclass

from outdo.config.recipe import Piece, Recipe
from outdo.data.prompts import tokenise
from outdo.data.questions import Question
from outdo.models.policy import Policy
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.trainer.environment import tools_of
from outdo.types import Prompt
from outdo.utils.errors import UserError

MAX_TOKENS = 256
"""The longest answer where neither an argument nor a run sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """How questions become prompts, and how they are answered."""

    sampling: SamplingParams
    template: str | None
    system: str | None
    environment: Piece | None = None

    def prompts(self, questions: Sequence[Question], policy: Policy) -> list[Prompt]:
        """Tokenise the questions. Raises `UserError` with every question that the model has no room for."""
        return tokenise(
            questions,
            policy.tokenizer,
            max_tokens=None if policy.context is None else policy.context - 1,
            template=self.template,
            system=self.system,
            overlong="refuse",
            tools=tools_of(self.environment),
        )


def answering(
    command: str,
    recipe: Recipe | None,
    *,
    k: int,
    temperature: float | None,
    max_tokens: int | None,
    template: str | None,
) -> Answering:
    """Take each setting from the arguments, or else from the run's recipe, or else the default.

    Without a temperature it is 0 for one answer per question, and 1 for several. Raises `UserError`, with the name of
    the command, for several answers at temperature 0.
    """
    if temperature == 0 and k > 1:
        raise UserError([f"{command}: at temperature 0 all {k} answers to a question are equal; use --k 1"])
    chosen = (0.0 if k == 1 else 1.0) if temperature is None else temperature
    if recipe is None:
        sampling = SamplingParams(temperature=chosen, max_tokens=max_tokens or MAX_TOKENS)
        return Answering(sampling=sampling, template=template, system=None)
    sampling = SamplingParams(
        temperature=chosen,
        max_tokens=max_tokens or recipe.sampling.max_tokens,
        stop=recipe.sampling.stop_texts,
        stop_token_ids=recipe.sampling.stop_token_ids,
    )
    return Answering(
        sampling=sampling,
        template=template or recipe.data.template,
        system=recipe.data.system,
        environment=recipe.environment,
    )
