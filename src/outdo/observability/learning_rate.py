"""Suggest a learning rate by the metrics of short runs that differ only in it: `outdo tune lr`.

A rate is **within bounds** if all steps are done, no update was refused, and over the later half of the steps

    step_kl                   KL(π_old‖πθ) of a step is at most 0.01 nats per token, the usual limit of PPO's passes
    clip_ratio/region_mean    at most 20 % of the tokens are at the clip of the objective
    entropy                   is between a fifth and the threefold of that of the first step, as the doctor has it

Its **gain** is the mean reward of the later half of the steps minus that of the earlier half. All rates are tried on
the same questions, so that gains differ by the rates and by the chance of sampling. The suggestion is the largest rate
within bounds whose gain is positive, and at least half of the largest gain within bounds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from outdo.observability.picture_file import save_picture

LARGEST_STEP_KL = 0.01
LARGEST_CLIPPED = 0.2
LEAST_ENTROPY, LARGEST_ENTROPY = 0.2, 3.0
LEAST_GAIN = 0.5
"""The share of the largest gain that the gain of the suggested rate has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What the steps with a rate have shown. A number is None where the run has no such metric."""

    rate: float
    steps: int  # that were done
    wanted: int
    refused: int  # updates
    gain: float | None
    reward: float | None  # the mean over the later half of the steps, as the next two
    step_kl: float | None
    clipped: float | None
    entropy: float | None  # the share of that of the first step

    @property
    def faults(self) -> list[str]:
        """Why the rate is not within bounds; empty if it is."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        if self.steps < self.wanted:
            yield f"only {self.steps} of {self.wanted} steps were done"
        if self.refused:
            yield f"{self.refused} updates were not finite"
        if self.step_kl is not None and self.step_kl > LARGEST_STEP_KL:
            yield f"a step moves the policy by {self.step_kl:.2g} nats per token (bound: {LARGEST_STEP_KL:g})"
        if self.clipped is not None and self.clipped > LARGEST_CLIPPED:
            yield f"{self.clipped:.0%} of the tokens are clipped (bound: {LARGEST_CLIPPED:.0%})"
        if self.entropy is not None and not LEAST_ENTROPY <= self.entropy <= LARGEST_ENTROPY:
            yield (
                f"the entropy became {self.entropy:.2g} times that of the first step "
                f"(bounds: {LEAST_ENTROPY:g} and {LARGEST_ENTROPY:g})"
            )


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A learning rate, or None, and the reason."""

    rate: float | None
    reason: str


def trial_of(rate: float, lines: Sequence[Mapping[str, Any]], wanted: int) -> Trial:
    """Return what the metrics of a run of `wanted` steps with a rate show, one line for each step that was done."""
    middle = len(lines) // 2
    earlier, later = (_mean(half, "reward") for half in (lines[:middle], lines[middle:]))
    first, entropy = _mean(lines[:1], "entropy"), _mean(lines[middle:], "entropy")
    return Trial(
        rate=rate,
        steps=len(lines),
        wanted=wanted,
        refused=int(sum(line.get("updates/refused") or 0 for line in lines)),
        gain=None if earlier is None or later is None else later - earlier,
        reward=later,
        step_kl=_mean(lines[middle:], "step_kl"),
        clipped=_mean(lines[middle:], "clip_ratio/region_mean"),
        entropy=entropy / first if first and entropy is not None else None,
    )


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return fmean(values) if values else None


def suggest(trials: Sequence[Trial]) -> Suggestion:
    """Return the suggested rate of the trials by the rule above."""
    trials = sorted(trials, key=lambda trial: trial.rate)
    within = [trial for trial in trials if not trial.faults]
    if not within:
        lower = ": try lower ones" if trials[0].steps == trials[0].wanted else ""
        return Suggestion(None, f"no rate is within bounds; at {trials[0].rate:g}, {trials[0].faults[0]}{lower}")
    gains = {trial.rate: trial.gain or 0.0 for trial in within}
    rising = [rate for rate, gain in gains.items() if gain > 0 and gain >= LEAST_GAIN * max(gains.values())]
    if not rising:
        return Suggestion(
            None,
            f"the reward rose with no rate within bounds, the largest of which is {within[-1].rate:g}: "
            "try more steps or more questions per step, or higher rates if that is the largest of all",
        )
    chosen = rising[-1]
    beyond = _beyond([trial for trial in trials if trial.rate > chosen])
    return Suggestion(chosen, f"the reward rose by {gains[chosen]:.3f}, within all bounds; {beyond}")


def _beyond(larger: Sequence[Trial]) -> str:
    """Return what speaks against the rates that are larger than the suggested one."""
    if not larger:
        return "it is the largest rate tried, and a higher one may do as well"
    after = larger[0]
    why = after.faults[0] if after.faults else f"the reward changed by {after.gain or 0.0:+.3f}"
    return f"at {after.rate:g}, {why}"


def draw(trials: Sequence[Trial], suggestion: Suggestion, path: Path) -> None:
    """Draw gain, movement and clipping by rate into an .svg or .png file. Raises `ImportError` without matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rates = [trial.rate for trial in trials]
    panels = (
        ("gain of the reward", [trial.gain for trial in trials], None),
        ("step_kl, nats per token", [trial.step_kl for trial in trials], LARGEST_STEP_KL),
        ("share of clipped tokens", [trial.clipped for trial in trials], LARGEST_CLIPPED),
    )
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10.0, 2.9), layout="constrained")
        for axes, (title, values, bound) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            heights = [math.nan if value is None else value for value in values]
            axes.plot(rates, heights, marker="o", color="#1d5fa8")
            if bound is not None:
                axes.axhline(bound, color="#c2570c", linestyle=(0, (4, 1.5)))
            if suggestion.rate is not None:
                axes.axvline(suggestion.rate, color="0.6", linewidth=0.8)
            axes.set_xscale("log")
            axes.set_xlim(0.7 * min(rates), 1.4 * max(rates))
            axes.set_title(title, loc="left", fontsize=9.5)
            axes.set_xlabel("learning rate")
        save_picture(figure, path)
