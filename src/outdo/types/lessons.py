"""What the teachers of a run read of each answer: which of them teaches it, and which prompt stands before it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """How one answer is taught."""

    teacher: str = ""  # the name of its only teacher; empty: all of them teach it
    prompt: tuple[int, ...] | None = None  # token ids that a teacher with a hint reads; None: the answer has no hint


def lessons_of_rows(rows: Sequence[Lesson]) -> tuple[Lesson, ...]:
    """Return the lessons of the rows of a batch; () if none of them says anything."""
    return tuple(rows) if any(lesson != Lesson() for lesson in rows) else ()
