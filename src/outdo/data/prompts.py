"""Tokenise questions into prompts, and divide the prompts into one batch per training step."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from outdo.data.files import shorten
from outdo.data.questions import Question
from outdo.data.streaming import Joined, Lazy, StreamedQuestions
from outdo.models.prompt_encoding import encode_prompt
from outdo.types import Group, Prompt
from outdo.utils.errors import ModelError, UserError
from outdo.utils.rng import Stream, stream_key, uniforms

ToolsOf = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""Returns the schemas of the tools that the environment of a row has."""


def tokenise(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template: str | None = None,
    system: str | None = None,
    overlong: str = "drop",
    tools: ToolsOf = lambda row: (),
    track: Callable[[Sequence[Question]], Iterable[Question]] = lambda questions: questions,
) -> Sequence[Prompt]:
    """Render and tokenise each question once; sampling and training use these ids. Streamed questions stay on disk.

    Prompts of more than `max_tokens` tokens are dropped (`overlong` "drop") or refused ("refuse"): truncation would
    change the question. The `tools` of a row are in its prompt, before the question's own. `track` shows how many of
    the questions are tokenised. Raises `UserError` with every question that is refused, by `overlong` or by the chat
    template.
    """

    def encode(question: Question) -> Prompt:
        return _prompt(question, tokenizer, template=template, system=system, tools=tools)

    streams = isinstance(questions, StreamedQuestions)
    prompts: list[Prompt] = []
    places, too_long = array("Q"), array("Q")
    refused: list[str] = []
    for place, question in enumerate(track(questions)):
        try:
            prompt = encode(question)
        except ModelError as error:
            refused.append(str(error))
            continue
        if max_tokens is not None and len(prompt.token_ids) > max_tokens:
            too_long.append(place)
            continue
        places.append(place)
        prompts += [] if streams else [prompt]
    if overlong == "refuse" or not places:
        refused += [_too_long(encode(questions[place]), max_tokens) for place in too_long]
    if refused:
        raise UserError(shorten(refused, "questions"))
    return StreamedPrompts(questions, places, encode) if streams else prompts


def _prompt(
    question: Question,
    tokenizer: PreTrainedTokenizerBase,
    *,
    template: str | None,
    system: str | None,
    tools: ToolsOf,
) -> Prompt:
    ids = encode_prompt(
        tokenizer,
        question.text,
        template=template,
        system=system,
        tools=[*tools(question.columns), *question.tools],
        where=f"question {question.id}",
    )
    return Prompt(
        id=question.id, text=question.text, token_ids=tuple(ids), answer=question.answer, columns=question.columns
    )


def _too_long(prompt: Prompt, max_tokens: int | None) -> str:
    return f"question {prompt.id}: its prompt has {len(prompt.token_ids)} tokens, more than the {max_tokens} allowed"


class StreamedPrompts(Lazy[Prompt]):
    """The prompts of questions on disk: those at `places`, each read and tokenised by `encode` when it is asked for."""

    def __init__(
        self, questions: StreamedQuestions, places: Sequence[int], encode: Callable[[Question], Prompt]
    ) -> None:
        self.questions = questions
        self.places = places
        self.encode = encode

    def __len__(self) -> int:
        return len(self.places)

    def make(self, place: int) -> Prompt:
        """Read and tokenise the question at a place."""
        return self.encode(self.questions[self.places[place]])

    def by_id(self, prompt_id: str) -> Prompt:
        """Read and tokenise the question with an id. Raises KeyError if there is none."""
        return self.encode(self.questions.by_id(prompt_id))


class PromptsById:
    """Prompts by their id, `known["2:7"]`. Those on disk are read when they are asked for."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        parts = prompts.parts if isinstance(prompts, Joined) else [prompts]
        self._streamed = [part for part in parts if isinstance(part, StreamedPrompts)]
        others = [part for part in parts if not isinstance(part, StreamedPrompts)]
        self._others = {prompt.id: prompt for part in others for prompt in part}

    def __getitem__(self, prompt_id: str) -> Prompt:
        if prompt_id in self._others:
            return self._others[prompt_id]
        for part in self._streamed:
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


class Mixture(Prompts[Item]):
    """Batches of prompts from several sources, in the shares that their weights have of the sum of all weights.

    Each prompt comes from the source that lacks most of its share so far; of equal ones, the first. So every number of
    prompts has the shares as nearly as whole prompts allow. Each source has its own epochs and orders.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Item] | Prompts[Item]],
        weights: Sequence[float],
        *,
        per_step: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.sources = [
            source
            if isinstance(source, Prompts)
            else Prompts(source, per_step=per_step, seed=seed, shuffle=shuffle, name=str(place))
            for place, source in enumerate(sources)
        ]
        everything = Joined([source.prompts for source in self.sources])
        super().__init__(everything, per_step=per_step, seed=seed, shuffle=shuffle)
        self.shares = [weight / sum(weights) for weight in weights]

    def take(self, count: int) -> list[Item]:
        """Return the next `count` prompts of the mixture."""
        chosen = self._choose(self.position, [source.position for source in self.sources], count)
        self.position += count
        own = [iter(source.take(chosen.count(place))) for place, source in enumerate(self.sources)]
        return [next(own[place]) for place in chosen]

    def observe(self, groups: Sequence[Group]) -> None:
        """Tell all sources the answers to some prompts."""
        for source in self.sources:
            source.observe(groups)

    def metrics(self, questions: Sequence[Item]) -> dict[str, float]:
        """Return the metrics of all sources."""
        return {name: value for source in self.sources for name, value in source.metrics(questions).items()}

    def state(self) -> dict[str, Any]:
        """Return the number of prompts that have been taken, and the states of sources that have more than that."""
        states = {str(place): source.state() for place, source in enumerate(self.sources)}
        more = {place: state for place, state in states.items() if state.keys() > {"position"}}
        return {**super().state(), **({"sources": more} if more else {})}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position, which determines the positions in all sources."""
        super().load_state(state)
        chosen = self._choose(0, [0] * len(self.sources), self.position)
        more = state.get("sources", {})
        for place, source in enumerate(self.sources):
            source.load_state(more.get(str(place), {"position": chosen.count(place)}))

    def _choose(self, position: int, taken: Sequence[int], count: int) -> list[int]:
        """Return the sources of `count` prompts after the first `position`, of which each source has given `taken`."""
        given, chosen = list(taken), list[int]()
        for total in range(position + 1, position + count + 1):
            lacking = [share * total - own for share, own in zip(self.shares, given, strict=True)]
            place = lacking.index(max(lacking))
            given[place] += 1
            chosen.append(place)
        return chosen
