"""Coefficients that follow a target instead of standing still. They are numbers to whoever multiplies by them.

The caller's loop tells them what a step measured: `for step in train(...): beta.observe(step_metrics(step))`. What they
have come to is part of a checkpoint: `state` and `load_state`.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class Adaptive(Protocol):
    """A number that learns from a step's metrics."""

    def __float__(self) -> float:
        """What it is now."""
        ...

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take in what a step measured."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        ...


class AdaptiveCoefficient:
    """β ← β (1 + rate · clip((KL - target) / target, ±0.2)); Ziegler et al. (arXiv 1909.08593) section 2.2.

    KL is the metric `kl`: nats per trained token, not per answer as in the paper, so that its target does not depend on
    the length of answers. In the paper rate is 0.1.
    """

    def __init__(self, *, start: float, target: float, rate: float = 0.1) -> None:
        _positive(start=start, target=target, rate=rate)
        self.value = start
        self.target = target
        self.rate = rate

    def __float__(self) -> float:
        return self.value

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Move towards the target by what the step's `kl` was; without one, stay."""
        if "kl" in metrics:
            error = (metrics["kl"] - self.target) / self.target
            self.value *= 1 + self.rate * max(-0.2, min(0.2, error))

    def state(self) -> dict[str, Any]:
        """The coefficient."""
        return {"value": self.value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.value = state["value"]


class AdaptiveBonus:
    """η rises by `step` while the entropy is at or below `target`, else falls; Skywork-OR1 (arXiv 2505.22312).

    It counts only while the entropy is at or below the target, and is 0 otherwise. The entropy is the metric `entropy`:
    nats per trained token. It stays within [low, high]. TRL moves it after every optimiser step, and adds no bonus
    before it has measured an entropy; here it is after every training step, and counts from the start.
    """

    def __init__(
        self, *, start: float, target: float, step: float = 0.005, low: float = 0.0, high: float = 1.0
    ) -> None:
        _positive(target=target, step=step)
        if not isinstance(start, int | float) or not 0 <= low <= start <= high:
            raise ValueError(f"entropy_bonus: expected 0 <= low <= start <= high, not {low}, {start}, {high}")
        self.value = start
        self.target = target
        self.step = step
        self.low, self.high = low, high
        self.counts = True

    def __float__(self) -> float:
        return self.value if self.counts else 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step up or down by what the step's `entropy` was; without one, stay."""
        if "entropy" in metrics:
            self.counts = metrics["entropy"] <= self.target
            moved = self.value + (self.step if self.counts else -self.step)
            self.value = min(self.high, max(self.low, moved))

    def state(self) -> dict[str, Any]:
        """The coefficient, and whether it counts."""
        return {"value": self.value, "counts": self.counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.value, self.counts = state["value"], state["counts"]


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < float("inf"):
            raise ValueError(f"{name} must be a number above 0, not {number!r}")
