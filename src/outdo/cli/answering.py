"""How `outdo eval`, `generate` and `chat` prompt a model and sample: by the arguments, the run, or the defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from outdo.cli.output import print_line
from outdo.cli.template_option import read_template
from outdo.config.recipe import Piece, Recipe
from outdo.data.prompts import tokenise
from outdo.data.questions import Question
from outdo.models.chat_options import keep_date, set_chat_options
from outdo.models.conversation_notes import conversation_notes
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import with_system
from outdo.models.template_header import DATE, now
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.data import inputs_of
from outdo.run.assemble.environment import tools_of
from outdo.run.check.prompt_warnings import template_does
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
    special_tokens: bool = False  # those in texts of questions and environments
    chat_options: Mapping[str, Any]  # of the chat template; empty: as the model has them
    date: str  # that a chat template writes which keeps none
    environment: Piece | None = None
    inputs: Piece | None = None  # what makes of a row what the model reads beside its tokens

    @property
    def dated(self) -> bool:
        """Whether the date that a chat template may write is that of the arguments or the run."""
        return DATE in self.chat_options

    @property
    def in_prompts(self) -> dict[str, Any]:
        """What questions and environments have in common."""
        return {"system": self.system, "special_tokens": self.special_tokens}

    def set_template(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Set the options and the date of the chat template; return the date, if the template writes one."""
        set_chat_options(tokenizer, self.chat_options)
        return keep_date(tokenizer, self.date)

    def prompts(self, questions: Sequence[Question], policy: Policy) -> Sequence[Prompt]:
        """Tokenise the questions. Raises `UserError` with every question that the model has no room for."""
        self.set_template(policy.tokenizer)
        prompts = tokenise(
            questions,
            policy.tokenizer,
            max_tokens=None if policy.context is None else policy.context - 1,
            template=self.template,
            **self.in_prompts,
            overlong="refuse",
            tools=tools_of(self.environment),
            inputs=inputs_of(self.inputs),
        )
        if self.template is None and policy.tokenizer.chat_template:
            self._say_notes(questions, policy)
        return prompts

    def _say_notes(self, questions: Sequence[Question], policy: Policy) -> None:
        """Print what the chat template does with messages that nobody would expect, beside what the command prints."""
        tools_in = tools_of(self.environment)
        notes: dict[str, list[str]] = {}
        for question in questions:
            messages, tools = with_system(question.text, self.system), tools_in(question.columns)
            notes[question.id] = conversation_notes(policy.tokenizer, messages, [*tools, *question.tools])
        for sentence in template_does(notes):
            print_line(Console(stderr=True), f"note: {sentence}")


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
    text, options = _template(command, template)
    if recipe is None:
        sampling = SamplingParams(temperature=chosen, max_tokens=max_tokens or MAX_TOKENS)
        return Answering(sampling=sampling, template=text, system=None, chat_options=options, date=now())
    sampling = SamplingParams(
        temperature=chosen,
        max_tokens=max_tokens or recipe.sampling.max_tokens,
        stop=recipe.sampling.stop_texts,
        stop_token_ids=recipe.sampling.stop_token_ids,
    )
    return Answering(
        sampling=sampling,
        template=recipe.data.prompt_template if template is None else text,
        system=recipe.data.system,
        special_tokens=recipe.data.special_tokens,
        chat_options=recipe.data.chat_options if template is None else options,
        date=recipe.data.chat_options.get(DATE) or now(),
        environment=recipe.environment,
        inputs=recipe.data.inputs,
    )


def _template(command: str, template: str | None) -> tuple[str | None, Mapping[str, Any]]:
    try:
        return read_template(template)
    except UserError as error:
        raise UserError([f"{command}: {problem}" for problem in error.problems]) from None
