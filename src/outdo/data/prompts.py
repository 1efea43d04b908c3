"""Tokenise questions into prompts, and divide the prompts into one batch per training step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy
from transformers import PreTrainedTokenizerBase

from outdo.data.files import shorten
from outdo.data.questions import Question
from outdo.models.prompt_encoding import encode_prompt
from outdo.types import Prompt
from outdo.utils.errors import ModelError, UserError
from outdo.utils.rng import Stream, stream_key, uniforms


def tokenise(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template: str | None = None,
    system: str | None = None,
    overlong: str = "drop",
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[Prompt]:
    """Render and tokenise each question once; sampling and training use these ids.

    Prompts of more than `max_tokens` tokens are dropped (`overlong` "drop") or refused ("refuse"): truncation would
    change the question. `tools` are in every prompt, before the question's own. Raises `UserError` with every question
    that is refused, by `overlong` or by the chat template.
    """
    prompts: list[Prompt] = []
    too_long: list[str] = []
    refused: list[str] = []
    for question in questions:
        where = f"question {question.id}"
        try:
            ids = encode_prompt(
                tokenizer, question.text, template=template, system=system, tools=[*tools, *question.tools], where=where
            )
        except ModelError as error:
            refused.append(str(error))
            continue
        if max_tokens is not None and len(ids) > max_tokens:
            too_long.append(f"{where}: its prompt has {len(ids)} tokens, more than the {max_tokens} allowed")
            continue
        prompts.append(
            Prompt(
                id=question.id,
                text=question.text,
                token_ids=tuple(ids),
                answer=question.answer,
                columns=question.columns,
            )
        )
    if overlong == "refuse" or not prompts:
        refused += too_long
    if refused:
        raise UserError(shorten(refused, "questions"))
    return prompts


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

    def __iter__(self) -> Iterator[list[Item]]:
        """Yield batches from the current position on."""
        while True:
            yield self.take(self.per_step)

    def take(self, count: int) -> list[Item]:
        """Return the next `count` prompts; no later batch of this epoch has them again."""
        size = len(self.prompts)
        positions = range(self.position, self.position + count)
        orders = {epoch: self._order(epoch) for epoch in {position // size for position in positions}}
        self.position += count
        return [self.prompts[orders[position // size][position % size]] for position in positions]

    def state(self) -> dict[str, Any]:
        """Return the position: how many prompts have been taken."""
        return {"position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position."""
        self.position = state["position"]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.prompts))
        key = stream_key(self.seed, Stream("order", epoch, self.name, 0))
        positions = numpy.arange(len(self.prompts), dtype=numpy.uint64)
        return uniforms(numpy.full_like(positions, key), positions).argsort(kind="stable").tolist()


class Mixture(Prompts[Item]):
    """Batches of prompts from several sources, in the shares that their weights have of the sum of all weights.

    Each prompt comes from the source that lacks most of its share so far; of equal ones, the first. So every number of
    prompts has the shares as nearly as whole prompts allow. Each source has its own epochs and orders.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Item]],
        weights: Sequence[float],
        *,
        per_step: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        everything = [prompt for source in sources for prompt in source]
        super().__init__(everything, per_step=per_step, seed=seed, shuffle=shuffle)
        self.sources = [
            Prompts(source, per_step=per_step, seed=seed, shuffle=shuffle, name=str(place))
            for place, source in enumerate(sources)
        ]
        self.shares = [weight / sum(weights) for weight in weights]

    def take(self, count: int) -> list[Item]:
        """Return the next `count` prompts of the mixture."""
        chosen = self._choose(self.position, [source.position for source in self.sources], count)
        self.position += count
        own = [iter(source.take(chosen.count(place))) for place, source in enumerate(self.sources)]
        return [next(own[place]) for place in chosen]

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position, which determines the positions in all sources."""
        super().load_state(state)
        chosen = self._choose(0, [0] * len(self.sources), self.position)
        for place, source in enumerate(self.sources):
            source.position = chosen.count(place)

    def _choose(self, position: int, taken: Sequence[int], count: int) -> list[int]:
        """Return the sources of `count` prompts after the first `position`, of which each source has given `taken`."""
        given, chosen = list(taken), list[int]()
        for total in range(position + 1, position + count + 1):
            lacking = [share * total - own for share, own in zip(self.shares, given, strict=True)]
            place = lacking.index(max(lacking))
            given[place] += 1
            chosen.append(place)
        return chosen


def in_batches(
    prompts: Sequence[Prompt],
    questions: Sequence[Question],
    weights: Sequence[float],
    *,
    per_step: int,
    seed: int,
    shuffle: bool,
) -> Prompts[Prompt]:
    """Return the batches of the prompts of `questions`: mixed, if their sources have weights.

    Raises `UserError` if no prompt of a source is left.
    """
    if not weights:
        return Prompts(prompts, per_step=per_step, seed=seed, shuffle=shuffle)
    source_of = {question.id: question.source for question in questions}
    sources = [[prompt for prompt in prompts if source_of[prompt.id] == place] for place in range(len(weights))]
    if empty := [place + 1 for place, source in enumerate(sources) if not source]:
        raise UserError([f"data.path[{place}]: no question of this file is left to train on" for place in empty])
    return Mixture(sources, weights, per_step=per_step, seed=seed, shuffle=shuffle)
