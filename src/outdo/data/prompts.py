"""From the rows of a data set to prompts in token ids, and from prompts to one batch per training step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
from transformers import PreTrainedTokenizerBase

from outdo.data.questions import Question
from outdo.models.prompt_encoding import encode_prompt
from outdo.types import Prompt
from outdo.utils.errors import ModelError, UserError
from outdo.utils.rng import Stream, stream_key, uniforms

SHOWN = 20
"""Refused questions that a message names; the rest is counted."""


def tokenise(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template: str | None = None,
    system: str | None = None,
    overlong: str = "drop",
) -> list[Prompt]:
    """Render and tokenise each question once; these ids are what is sampled from and trained on.

    Prompts of more than `max_tokens` tokens are left out (`overlong` "drop") or refused ("refuse"): cutting a question
    would change it. Raises `UserError` with every question that is refused, by `overlong` or by the chat template.
    """
    prompts: list[Prompt] = []
    long: list[str] = []
    refused: list[str] = []
    for question in questions:
        where = f"question {question.id}"
        try:
            ids = encode_prompt(tokenizer, question.text, template=template, system=system, where=where)
        except ModelError as error:
            refused.append(str(error))
            continue
        if max_tokens is not None and len(ids) > max_tokens:
            long.append(f"{where}: its prompt has {len(ids)} tokens, more than the {max_tokens} allowed")
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
        refused += long
    if refused:
        rest = [f"and {len(refused) - SHOWN:,} more questions like these"] if len(refused) > SHOWN else []
        raise UserError([*refused[:SHOWN], *rest])
    return prompts


class Prompts:
    """An endless sequence of batches of `per_step` prompts; each epoch in an order of its own, keyed by the seed.

    Only the position needs saving. A step at the end of an epoch is filled up from the next one.
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
        """Batches from the current position on."""
        while True:
            yield self.take(self.per_step)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts, which no later batch will hold again in this epoch."""
        places = range(self.position, self.position + count)
        orders = {epoch: self._order(epoch) for epoch in {place // len(self.prompts) for place in places}}
        self.position += count
        return [self.prompts[orders[place // len(self.prompts)][place % len(self.prompts)]] for place in places]

    def state(self) -> dict[str, Any]:
        """How many prompts have been given out."""
        return {"position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.position = state["position"]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.prompts))
        key = stream_key(self.seed, Stream("order", epoch, "", 0))
        positions = numpy.arange(len(self.prompts), dtype=numpy.uint64)
        return uniforms(numpy.full_like(positions, key), positions).argsort(kind="stable").tolist()
