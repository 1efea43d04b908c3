"""Coefficients that change so that a metric approaches a target. An objective uses them like numbers.

The caller's loop passes them the metrics of each step: `for step in train(...): beta.observe(step_metrics(step))`. A
checkpoint stores their value: `state` and `load_state`.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol


class Adaptive(Protocol):
    """A number that changes with the metrics of each step."""

    def __float__(self) -> float:
        """Return the current value."""
        ...

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Update the value with the metrics of a step."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the data for a checkpoint."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the data that `state` returned."""
        ...


LARGEST_ERROR = 0.2
"""The share of the target by which a KL counts as too high or too low, at most."""


class AdaptiveCoefficient:
    """β ← β (1 + rate · clip((KL - target) / target, ±0.2)); Ziegler et al. (arXiv 1909.08593) section 2.2.

    KL is the metric `kl`: nats per trained token, not per answer as in the paper, so that its target does not depend on
    the length of answers. In the paper rate is 0.1. Raises ValueError for a rate of 5 or more, with which β would not
    stay above 0.
    """

    def __init__(self, *, start: float, target: float, rate: float = 0.1) -> None:
        _positive(start=start, target=target, rate=rate)
        if rate * LARGEST_ERROR >= 1:
            raise ValueError(f"rate must be below {1 / LARGEST_ERROR:g}, not {rate}: a step could make beta negative")
        self.value = float(start)
        self.target = target
        self.rate = rate

    def __float__(self) -> float:
        return self.value

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Change the coefficient by the step's metric `kl`. Without a finite one it stays the same."""
        if math.isfinite(kl := metrics.get("kl", math.nan)):
            error = (kl - self.target) / self.target
            self.value *= 1 + self.rate * max(-LARGEST_ERROR, min(LARGEST_ERROR, error))

    def state(self) -> dict[str, Any]:
        """Return the coefficient."""
        return {"value": self.value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the data that `state` returned."""
        self.value = state["value"]


class AdaptiveBonus:
    """η rises by `step` while the entropy is at or below `target`, else falls; Skywork-OR1 (arXiv 2505.22312).

    The value is η while the entropy is at or below the target, and 0 otherwise. The entropy is the metric `entropy`, in
    nats per trained token. η stays within [low, high]. TRL changes it after every optimiser step, and adds no bonus
    before it has measured an entropy; here it changes after every training step, and is active from the start.
    """

    def __init__(
        self, *, start: float, target: float, step: float = 0.005, low: float = 0.0, high: float = 1.0
    ) -> None:
        _positive(target=target, step=step)
        if not isinstance(start, int | float) or not 0 <= low <= start <= high:
            raise ValueError(f"entropy_bonus: expected 0 <= low <= start <= high, not {low}, {start}, {high}")
        self.value = float(start)
        self.target = target
        self.step = step
        self.low, self.high = low, high
        self.active = True

    def __float__(self) -> float:
        return self.value if self.active else 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Raise or lower η by one step, by the metric `entropy`. Without a finite one it stays the same."""
        if math.isfinite(entropy := metrics.get("entropy", math.nan)):
            self.active = entropy <= self.target
            moved = self.value + (self.step if self.active else -self.step)
            self.value = min(self.high, max(self.low, moved))

    def state(self) -> dict[str, Any]:
        """Return η, and whether it is active."""
        return {"value": self.value, "counts": self.active}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the data that `state` returned."""
        self.value, self.active = state["value"], state["counts"]


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < float("inf"):
            raise ValueError(f"{name} must be a number above 0, not {number!r}")
