"""What a piece must be given. A piece that needs nothing says nothing; one that does is marked with `@requires`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Piece = TypeVar("Piece", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Requires:
    """What must be in the batch, in the scores or in a micro-batch. `|` gives the needs of two together."""

    reference: bool = False  # `batch.ref_logprobs`
    old_logprobs: bool = False  # `batch.old_logprobs`, even where the batch is passed over only once
    old_entropy: bool = False  # `batch.old_entropy`
    values: bool = False  # `batch.values`, by a critic
    baselines: bool = False  # `batch.baselines`: the reward of the likeliest answer
    entropy: bool = False  # `scores.entropy`, with a gradient
    whole_groups: bool = False  # no micro-batch may cut a group

    def __or__(self, other: "Requires") -> "Requires":
        return Requires(**{each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(self)})


def requires(**needed: bool) -> Callable[[Piece], Piece]:
    """Mark a function with its needs: `@requires(old_logprobs=True)`."""

    def mark(piece: Piece) -> Piece:
        piece.requires = Requires(**needed)  # type: ignore[attr-defined]
        return piece

    return mark


def requirements_of(*pieces: object) -> Requires:
    """What all of the pieces need together; a piece without a mark needs nothing."""
    found = Requires()
    for piece in pieces:
        while isinstance(piece, functools.partial):  # options filled in
            piece = piece.func
        found = found | getattr(piece, "requires", Requires())
    return found
