"""The words of this room: what a reward sees, and what it says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

LARGEST_VALUE = 1e6
"""A reward beyond ±this is called non-finite: in float32 a 1e30 makes every other reward of its group vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """A question with one answer to it: all that a reward may look at."""

    prompt: str | list[dict[str, Any]]
    """The question, as text or as chat messages, before the chat template was applied."""
    completion: str
    """The answer, decoded, without special tokens."""
    answer: Any
    """The reference: the value of the data's answer column, or `None` where there is none."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the row under their own names."""
    completion_ids: Sequence[int] = ()
    """The token ids that were sampled, the end-of-sequence token included."""


class Status(StrEnum):
    """How the scoring of a completion went. Only `ok` carries a value; the others are counted and never trained on."""

    ok = "ok"
    not_applicable = "not_applicable"
    failed = "failed"
    timed_out = "timed_out"
    non_finite = "non_finite"

    @property
    def is_failure(self) -> bool:
        """True where the reward should have given a value and did not."""
        return self not in (Status.ok, Status.not_applicable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOutput:
    """What a reward says about one completion."""

    value: float
    """The reward: finite, and 0.0 where `verdict` is not ok (a placeholder, to be left out of every mean)."""
    verdict: Status
    """Whether `value` means anything, and if not, why."""
    parts: Mapping[str, float | None]
    """The value of each reward function by its name, before weights; `None` where it gave none."""
    reason: str = ""
    """One line for the reader of a failure; empty where there was none."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or (self.verdict is not Status.ok and self.value != 0.0):
            raise ValueError(f"a reward with the verdict {self.verdict} cannot have the value {self.value}")


class Reward(Protocol):
    """Scores completions: one verdict for each, in the same order, and never an exception for one that fails."""

    @property
    def name(self) -> str:
        """The name of the function; it names the part in `Scored.parts`."""
        ...

    def __call__(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion."""
        ...

    def close(self) -> None:
        """Give back processes and threads. A closed reward is not used again."""
        ...


def unscored(verdict: Status, reason: str, name: str) -> RewardOutput:
    """A verdict without a value; `reason` is brought to one line of at most 300 characters."""
    return RewardOutput(value=0.0, verdict=verdict, parts={name: None}, reason=" ".join(reason[:1000].split())[:300])


def judged(value: object, name: str) -> RewardOutput:
    """Turn what a reward function called `name` returned for one completion into a value or a verdict.

    `None` is not applicable, True and False are 1 and 0, numbers and zero-dimensional arrays are their value, NaN,
    infinities and anything beyond ±`LARGEST_VALUE` are non-finite, and everything else has failed.
    """
    if value is None:
        return unscored(Status.not_applicable, "", name)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]
    if not isinstance(value, int | float):
        return unscored(Status.failed, f"{name} returned {_described(value)}; expected a number, a bool or None", name)
    if not abs(value) <= LARGEST_VALUE:
        what = f"{float(value)}" if isinstance(value, float) else "an integer too large"
        return unscored(Status.non_finite, f"{name} returned {what}, out of range (±{LARGEST_VALUE:g})", name)
    return RewardOutput(value=float(value), verdict=Status.ok, parts={name: float(value)})


def judged_all(values: object, count: int, name: str) -> list[RewardOutput]:
    """`judged` for a function that was given `count` completions at once; nothing is ever repeated to make it fit."""
    if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        got = f"{_described(values)} for {count} completions"
    elif getattr(values, "ndim", 1) == 0:
        got = f"1 value for {count} completions"
    else:
        rewards = list(values)  # type: ignore[call-overload]
        if len(rewards) == count:
            return [judged(reward, name) for reward in rewards]
        got = f"{len(rewards)} value{'s' * (len(rewards) != 1)} for {count} completions"
    return [unscored(Status.failed, f"{name} returned {got}; expected a list of {count}", name)] * count


def _described(value: object) -> str:
    """The type of a value, with its article."""
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
