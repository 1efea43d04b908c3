"""Rules about the size of the steps: how far did the pushes move single tokens?

`steps_too_small` and `steps_too_large` exclude each other. A policy that moved far did not take small steps, even if
most of them were; and in steps that hardly move a token, movement against the pushes is noise.
"""

import math
from collections.abc import Iterator

from outdo.extras.doctor.method import (
    compares_whole_answers,
    reward_change,
    share_without_signal,
)
from outdo.extras.doctor.series import MIN_STEPS, Finding, RunMetrics, Span

SMALL_PROGRESS = 0.001
"""Share of the way to the bounds. With a good learning rate (1e-4) the quickstart goes a few hundredths of the way per
step; with one that is a hundred times too low, a few ten-thousandths."""

MOSTLY = 0.75
"""Share of the measured steps that have to be small: at the ends of a learning rate schedule, small steps are meant."""

LARGE_STEP, HUGE_STEP = 0.2, 1.0
"""KL(π_old‖πθ) of one step, in nats per token: too large if it lasts, and at any time if the reward did not rise.
Healthy runs of the small quickstart stay below 0.05 in most steps; few tokens are measured, so that single steps reach
0.5, and 3.4 at the first step of an adapter whose answers soon were three times as good."""


def steps_too_small(run: RunMetrics) -> Iterator[Finding]:
    """Report that the steps hardly moved any token, and that the reward did not rise."""
    if still := _hardly_moved(run):
        span, what = still
        yield span.finding(
            "warning",
            f"{what}: the steps are too small{step_size(run, span)}.",
            "Raise optim.lr, or make more passes (train.passes).",
        )


def steps_too_large(run: RunMetrics) -> Iterator[Finding]:
    """Report that single steps change the policy a lot, or that the steps undo each other."""
    advice = "Lower optim.lr, make fewer passes (train.passes), or take more questions per step (train.prompts)."
    if span := _large_steps(run):
        yield span.finding(
            "warning",
            f"one step moves the policy by {span.mean:.2g} nats per token (KL), which is far{step_size(run, span)}.",
            advice,
        )
    elif not compares_whole_answers(run) and (span := run.lasting("attained", below=-0.05)):
        wrong = run.mean("moved_wrong_way", span, unknown=1.0)
        if wrong >= 0.5 and not _hardly_moved(run):
            yield span.finding(
                "warning",
                f"more probability moved against the pushes than with them (attained {span.mean:.1%}): the steps undo "
                f"each other{step_size(run, span)}.",
                advice,
            )


def _large_steps(run: RunMetrics) -> Span | None:
    """Return the steps that are too large. One that is huge is none if the reward rose: a first step may be so."""
    huge = _any_above(run.span("step_kl"), HUGE_STEP) if (reward_change(run) or 0.0) <= 0 else None
    return huge or run.lasting("step_kl", above=LARGE_STEP)


def _hardly_moved(run: RunMetrics) -> tuple[Span, str] | None:
    """Return the steps that hardly moved any token and how little that was; None if some moved many, or helped.

    A single step may have only a few tokens: so most measured steps have to be small, not all.
    """
    if _large_steps(run) or (reward_change(run) or 0.0) > 0:
        return None
    still = run.lasting("moved_not", above=0.5)
    if still and _are_most(sum(value > 0.5 for value in still.values), run.span("moved_not")):
        return still, f"{still.mean:.0%} of what was pushed did not move"
    way = run.span("attained")
    small = sum(abs(value) < SMALL_PROGRESS for value in way.values)
    if len(way.steps) < MIN_STEPS or not _are_most(small, way):
        return None
    where = f"in {small:,} of the {len(way.steps):,} measured steps"
    return way, f"{where}, tokens went less than {SMALL_PROGRESS:.1%} of the way to the bounds"


def _are_most(count: int, measured: Span) -> bool:
    return count >= MOSTLY * len(measured.steps)


def _any_above(whole: Span, limit: float) -> Span | None:
    above = [(step, value) for step, value in zip(whole.steps, whole.values, strict=True) if value > limit]
    steps, values = tuple(step for step, _ in above), tuple(value for _, value in above)
    return Span(whole.metric, steps, values) if above else None


def moved_as_intended(run: RunMetrics) -> Iterator[Finding]:
    """Report that tokens moved as intended. Where no reward pushed them, other terms alone did: no news."""
    moved = run.span("moved_as_intended")
    idle = share_without_signal(run, moved, unknown=0.0) >= 0.8
    if len(moved.steps) >= MIN_STEPS and moved.mean > 0.7 and not idle:
        counted = sum(run.span("moved/tokens").values)
        among = f" ({counted:,.0f} tokens were measured)" if counted else ""
        yield moved.finding(
            "good",
            f"{moved.mean:.1%} of the pushed tokens moved as intended, weighted by how far the pushes could move "
            f"them{among}.",
        )


def step_size(run: RunMetrics, over: Span) -> str:
    """Describe the size of the steps: the learning rate, and the norm of the gradient if it is clipped."""
    rate, norm = (run.mean(metric, over, unknown=math.nan) for metric in ("learning_rate", "grad_norm"))
    limit = float(run.setting("optim.clip_norm", 1.0))
    description = "" if math.isnan(rate) else f" (learning rate {rate:.2g})"
    if norm > 10 * limit:
        description += f"; the gradient norm, {norm:.3g}, is clipped to {limit:g} (optim.clip_norm)"
    return description
