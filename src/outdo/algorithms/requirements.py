"""The requirements of a piece: the optional data that it reads. `@requires` marks a piece that has any."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from outdo.algorithms.vocabulary_divergences import VocabularyDivergence
from outdo.algorithms.vocabulary_sums import VocabularySum, token_entropy

Piece = TypeVar("Piece", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Requires:
    """The data that a batch, scores or a micro-batch must have. `|` joins the requirements of two pieces."""

    reference: bool = False  # `batch.ref_logprobs`
    old_logprobs: bool = False  # `batch.old_logprobs`, even in a single pass over the batch
    old_sums: Mapping[str, VocabularySum] = field(default_factory=dict)  # `batch.old_sums`
    teacher: bool = False  # `batch.teacher_logprobs`
    divergences: Mapping[str, VocabularyDivergence] = field(default_factory=dict)  # from the teachers: `scores.sums`
    values: bool = False  # `batch.values`, by a critic
    end_values: bool = False  # `batch.end_values`, by a critic
    baselines: bool = False  # `batch.baselines`: the reward of the greedy answer
    sums: Mapping[str, VocabularySum] = field(default_factory=dict)  # `scores.sums`, with a gradient
    right: bool = False  # `batch.right`: which answers are right
    whole_groups: bool = False  # no micro-batch may split a group
    whole_batch: bool = False  # all groups of the step: whether an answer gets an advantage depends on other groups

    def __post_init__(self) -> None:
        if self.sums.get("entropy", token_entropy) is not token_entropy:
            raise ValueError('sums["entropy"], a metric of every run, is `token_entropy`: give your sum another name')
        if both := sorted({"entropy", *self.sums} & self.divergences.keys()):
            raise ValueError(f"divergences: there is a sum over the vocabulary by the name {both[0]!r} already")

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher has to read the batch."""
        return self.teacher or bool(self.divergences)

    @property
    def differentiated(self) -> list[str]:
        """The names in `scores.sums` that have a gradient."""
        return [*self.sums, *self.divergences]

    def __or__(self, other: "Requires") -> "Requires":
        return Requires(
            **{field.name: _joined(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        )


def _joined(left: Any, right: Any) -> Any:
    """Return one requirement of two pieces. Raises `ValueError` if they mean two sums by the same name."""
    if isinstance(left, bool):
        return left or right
    if twice := [name for name in left if right.get(name, left[name]) != left[name]]:
        raise ValueError(f"two pieces require different sums over the vocabulary by the name {twice[0]!r}: rename one")
    return {**left, **right}


def requires(*same_as: Requires, **required: Any) -> Callable[[Piece], Piece]:
    """Mark a function with its requirements, the fields of `Requires`: `@requires(old_logprobs=True)`.

    It also gets the requirements `same_as`, those of the pieces that it calls.
    """

    def mark(piece: Piece) -> Piece:
        piece.requires = reduce(or_, same_as, Requires(**required))  # type: ignore[attr-defined]
        return piece

    return mark


def requires_with(**options: Requires) -> Callable[[Piece], Piece]:
    """Mark a function with what it requires besides if an option is true: `@requires_with(bootstrap=Requires(...))`.

    The option is read where it is filled in by `functools.partial`, as a recipe does.
    """

    def mark(piece: Piece) -> Piece:
        piece.requires_with = options  # type: ignore[attr-defined]
        return piece

    return mark


def requires_unless(**options: Requires) -> Callable[[Piece], Piece]:
    """Mark a function with what it requires besides unless an option is set: `@requires_unless(threshold=...)`."""

    def mark(piece: Piece) -> Piece:
        piece.requires_unless = options  # type: ignore[attr-defined]
        return piece

    return mark


def requirements_of(*pieces: object) -> Requires:
    """Return the requirements of all pieces together. A piece without a mark requires nothing."""
    joined = Requires()
    for piece in pieces:
        options: dict[str, object] = {}
        while isinstance(piece, functools.partial):  # options filled in
            options = {**piece.keywords, **options}
            piece = piece.func
        joined = joined | getattr(piece, "requires", Requires())
        with_options: dict[str, Requires] = getattr(piece, "requires_with", {})
        for name, required in with_options.items():
            if options.get(name):
                joined = joined | required
        unless_options: dict[str, Requires] = getattr(piece, "requires_unless", {})
        for name, required in unless_options.items():
            if options.get(name) is None:
                joined = joined | required
    return joined
