"""Tokenise questions into prompts, and divide the prompts into one batch per training step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
) -> list[Prompt]:
    """Render and tokenise each question once; sampling and training use these ids.

    Prompts of more than `max_tokens` tokens are dropped (`overlong` "drop") or refused ("refuse"): truncation would
    change the question. Raises `UserError` with every question that is refused, by `overlong` or by the chat template.
    """
    prompts: list[Prompt] = []
    too_long: list[str] = []
    refused: list[str] = []
    for question in questions:
        where = f"question {question.id}"
        try:
            ids = encode_prompt(tokenizer, question.text, template=template, system=system, where=where)
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


class Prompts:
    """An endless sequence of batches of `per_step` prompts; each epoch has its own order, keyed by the seed.

    A checkpoint needs only the position. The last batch of an epoch is filled up from the next epoch.
    """

    def __init__(self, prompts: Sequence[Prompt], *, per_step: int, seed: int = 0, shuffle: bool = True) -> None:
        if not prompts:
            raise ValueError("there are no prompts")
        self.prompts = prompts
        self.per_step = per_step
        self.seed = seed
        self.shuffle = shuffle
        self.position = 0

    def __iter__(self) -> Iterator[list[Prompt]]:
        """Yield batches from the current position on."""
        while True:
            yield self.take(self.per_step)

    def take(self, count: int) -> list[Prompt]:
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
        key = stream_key(self.seed, Stream("order", epoch, "", 0))
        positions = numpy.arange(len(self.prompts), dtype=numpy.uint64)
        return uniforms(numpy.full_like(positions, key), positions).argsort(kind="stable").tolist()
