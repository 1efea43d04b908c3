"""Tokenise questions into prompts, and divide the prompts into one batch per training step."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import numpy
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from outdo.data.files import shorten
from outdo.data.questions import Question
from outdo.data.sequences import Joined, Lazy
from outdo.models.prompt_encoding import WITHOUT_ENVIRONMENT_TOOLS, WITHOUT_TOOL_COLUMN, encode_prompt
from outdo.types import Group, Prompt
from outdo.types.inputs import Inputs, check_inputs
from outdo.utils.errors import ModelError, QuestionError, UserError
from outdo.utils.rng import Stream, stream_key, uniforms
from outdo.utils.text import counted

InputsOf = Callable[[Mapping[str, Any]], Inputs]
"""Returns what the model reads of a row beside the tokens of its prompt: see `types.inputs`."""

ToolsOf = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""Returns the schemas of the tools that the environment of a row has."""

Track = Callable[[Sequence[Question]], Iterable[Question]]
"""Returns the questions, and shows how many of them have been taken."""


def tokenise(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template: str | None = None,
    system: str | None = None,
    special_tokens: bool = False,
    overlong: str = "drop",
    tools: ToolsOf = lambda row: (),
    inputs: InputsOf = lambda row: {},
    track: Track = lambda questions: questions,
) -> list[Prompt]:
    """Render and tokenise each question once; sampling and training use these ids.

    Prompts of more than `max_tokens` tokens are dropped (`overlong` "drop") or refused ("refuse"): truncation would
    change the question. The `tools` of a row are in its prompt, before the question's own. `special_tokens` as in
    `encode_prompt`. `inputs` makes of a row what the model reads beside its tokens. `track` shows how many of the
    questions are tokenised. Raises `UserError` with every question that is refused, by `overlong` or by the template.
    """
    how = {"template": template, "system": system, "special_tokens": special_tokens}
    encode = partial(prompt_of, tokenizer=tokenizer, tools=tools, inputs=inputs, **how)
    return [prompt for _, prompt in short_enough(questions, encode, max_tokens, overlong=overlong, track=track)]


def _inputs_of(question: Question, inputs: InputsOf) -> Inputs:
    """Return what `inputs` makes of a question's row; `QuestionError` for what it cannot make."""
    try:
        made = inputs(question.columns)
    except Exception as error:  # the function is a user's
        raise QuestionError(f"question {question.id}: inputs: {type(error).__name__}: {error}") from error
    try:
        check_inputs(made, f"question {question.id}")
    except ValueError as error:
        raise QuestionError(str(error)) from error
    return made


def prompt_of(
    question: Question,
    *,
    tokenizer: PreTrainedTokenizerBase,
    template: str | None,
    system: str | None,
    special_tokens: bool,
    tools: ToolsOf,
    inputs: InputsOf = lambda row: {},
) -> Prompt:
    """Render and tokenise a question; see `tokenise`. Raises `ModelError` if the chat template refuses it."""
    if not isinstance(question, Question):
        raise TypeError(f"expected the questions of outdo.questions_from, found {type(question).__name__}")
    ids = encode_prompt(
        tokenizer,
        question.text,
        template=template,
        system=system,
        special_tokens=special_tokens,
        tools=[*tools(question.columns), *question.tools],
        without_tools=WITHOUT_TOOL_COLUMN if question.tools else WITHOUT_ENVIRONMENT_TOOLS,
        where=f"question {question.id}",
    )
    return Prompt(
        id=question.id,
        text=question.text,
        token_ids=tuple(ids),
        answer=question.answer,
        columns=question.columns,
        inputs=_inputs_of(question, inputs),
    )


def short_enough(
    questions: Sequence[Question],
    encode: Callable[[Question], Prompt],
    max_tokens: int | None,
    *,
    overlong: str,
    track: Track,
) -> Iterator[tuple[int, Prompt]]:
    """Yield the prompts of at most `max_tokens` tokens, each with the place of its question; see `tokenise`."""
    are_some = False
    too_long = array("Q")
    refused: list[str] = []
    for index, question in enumerate(track(questions)):
        try:
            prompt = encode(question)
        except ModelError as error:
            refused.append(str(error))
            continue
        if max_tokens is not None and len(prompt.token_ids) > max_tokens:
            too_long.append(index)
        else:
            are_some = True
            yield index, prompt
    if overlong == "refuse" or not are_some:
        refused += [_too_long(encode(questions[index]), max_tokens) for index in too_long]
    if refused:
        raise UserError(shorten(refused, "questions"))


def _too_long(prompt: Prompt, max_tokens: int | None) -> str:
    length = counted(len(prompt.token_ids), "token")
    return f"question {prompt.id}: its prompt has {length}, more than the {max_tokens} allowed"


class PromptsById:
    """Prompts by their id, `known["2:7"]`. Those on disk are read when they are asked for."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        parts = prompts.parts if isinstance(prompts, Joined) else [prompts]
        self._on_disk = [part for part in parts if isinstance(part, Lazy)]
        others = [part for part in parts if not isinstance(part, Lazy)]
        self._others = {prompt.id: prompt for part in others for prompt in part}

    def __getitem__(self, prompt_id: str) -> Prompt:
        if prompt_id in self._others:
            return self._others[prompt_id]
        for part in self._on_disk:
            with suppress(KeyError):
                return part.by_id(prompt_id)
        raise KeyError(prompt_id)


Item = TypeVar("Item")


class Prompts(Generic[Item]):
    """An endless sequence of batches of `per_step` prompts; each epoch has its own order, keyed by the seed.

    A checkpoint needs only the position. The last batch of an epoch is filled up from the next epoch. `name` separates
    the orders of several sources.
    """

    def __init__(
        self, prompts: Sequence[Item], *, per_step: int, seed: int = 0, shuffle: bool = True, name: str = ""
    ) -> None:
        if not prompts:
            raise ValueError("there are no prompts")
        if per_step < 1:
            raise ValueError(f"per_step: expected 1 or more prompts, found {per_step}")
        self.prompts = prompts
        self.per_step = per_step
        self.seed = seed
        self.shuffle = shuffle
        self.name = name
        self.position = 0
        self._orders: dict[int, Sequence[int] | NDArray[numpy.intp]] = {}  # by epoch; those of the last batch

    def __iter__(self) -> Iterator[list[Item]]:
        """Yield batches from the current position on."""
        while True:
            yield self.take(self.per_step)

    def take(self, count: int) -> list[Item]:
        """Return the next `count` prompts; no later batch of this epoch has them again."""
        size = len(self.prompts)
        positions = range(self.position, self.position + count)
        epochs = {position // size for position in positions}
        self._orders = {epoch: self._orders[epoch] if epoch in self._orders else self._order(epoch) for epoch in epochs}
        self.position += count
        return [self.prompts[int(self._orders[position // size][position % size])] for position in positions]

    def known(self: "Prompts[Prompt]") -> PromptsById:
        """Return the prompts by their id."""
        return PromptsById(self.prompts)

    def state(self) -> dict[str, Any]:
        """Return the position: how many prompts have been taken."""
        return {"position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position."""
        self.position = state["position"]

    def observe(self, groups: Sequence[Group]) -> None:
        """Do nothing with the answers to some prompts: what is taken next does not depend on them."""

    def metrics(self, questions: Sequence[Item]) -> dict[str, float]:
        """Return metrics of the questions of a step: none."""
        return {}

    def _order(self, epoch: int) -> Sequence[int] | NDArray[numpy.intp]:
        if not self.shuffle:
            return range(len(self.prompts))
        key = stream_key(self.seed, Stream("order", epoch, self.name, 0))
        positions = numpy.arange(len(self.prompts), dtype=numpy.uint64)
        return uniforms(numpy.full_like(positions, key), positions).argsort(kind="stable")
