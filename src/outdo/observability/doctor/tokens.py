"""Rules about single tokens: did the pushes move them?"""

import math
from collections.abc import Iterator
from typing import Any

from outdo.observability.doctor.series import MIN_STEPS, Finding, RunMetrics, Span, significant_change

CLIPPED = ("grpo", "grpo_clip", "ppo", "dr_grpo", "dapo", "bnpo", "reinforce_pp", "rloo_clip")
"""Objectives that clip the ratio of a token or an answer: with several passes, some tokens should be clipped."""

SEQUENCE = ("gspo", "gspo_token", "luspo")
"""Objectives that clip whole answers: their bounds for one token are so close that they say little about it."""

SMALL_PROGRESS = 0.001
"""Share of the way to the bounds. With a good learning rate (1e-4) the quickstart goes a few hundredths of the way per
step; with one that is a hundred times too low, a few ten-thousandths."""


def not_moving(run: RunMetrics) -> Iterator[Finding]:
    """Report that most pushed tokens did not move."""
    for span in run.lasting_spans("moved_not", above=0.5):
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of what was pushed did not move: the steps are too small"
            f"{step_size(run, span)}. Raise optim.lr, or make more passes (train.passes).",
        )


def hardly_moving(run: RunMetrics) -> Iterator[Finding]:
    """Report that tokens moved very little in most steps. Not in all: a single step may have only a few tokens."""
    way, ends = run.span("attained"), run.first_and_last("reward")
    small = sum(abs(value) < SMALL_PROGRESS for value in way.values)
    risen = ends is not None and significant_change(*ends) > 0
    if len(way.steps) >= MIN_STEPS and small >= 0.75 * len(way.steps) and not risen:
        yield way.finding(
            "warning",
            f"in {small} of the {len(way.steps)} measured steps, tokens went less than {SMALL_PROGRESS:.1%} of the way "
            f"to the bounds, and the reward did not rise: the steps are too small{step_size(run, way)}. Raise "
            "optim.lr, or make more passes (train.passes).",
        )


def moving_away(run: RunMetrics) -> Iterator[Finding]:
    """Report that more probability moved against the pushes than with them."""
    for span in run.lasting_spans("attained", below=-0.01):
        wrong = run.span("moved_wrong_way", span.steps[0], span.steps[-1])
        if objective(run) in SEQUENCE or (wrong.values and wrong.mean < 0.5):
            continue
        share = f"; {wrong.mean:.0%} of what was pushed went the wrong way" if wrong.values else ""
        yield span.finding(
            "warning",
            f"more probability moved against the pushes than with them (attained {span.mean:.1%}{share}): the "
            f"steps are too large and undo each other{step_size(run, span)}. Lower optim.lr, or take more questions "
            "per step (train.prompts).",
        )


def overshooting(run: RunMetrics) -> Iterator[Finding]:
    """Report that many tokens went beyond the bound of the objective."""
    for span in run.lasting_spans("overshoot", above=0.1) if objective(run) not in SEQUENCE else ():
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the tokens went beyond the bound that the objective sets for them"
            f"{step_size(run, span)}. Lower optim.lr, make fewer passes (train.passes), or end them early "
            "(train.stop).",
        )


def spent_on_certain(run: RunMetrics) -> Iterator[Finding]:
    """Report that nearly all of the push goes to tokens that can hardly move."""
    for span in run.lasting_spans("certain", above=0.95):
        yield span.finding(
            "note",
            f"{span.mean:.0%} of the push goes to tokens that are already above 99 % and can hardly move. Train only "
            "on uncertain tokens (the batch transform high_entropy).",
        )


def out_of_reach(run: RunMetrics) -> Iterator[Finding]:
    """Report that most bounds are beyond probability 1."""
    for span in run.lasting_spans("unreachable", above=0.8):
        yield span.finding(
            "note",
            f"for {span.mean:.0%} of the pushed tokens the bound is beyond probability 1: the clip limits almost "
            'nothing. The objective "target" sets targets that can be reached; in the comparison it learnt less '
            "(docs/methods/target.md).",
        )


def clipped_too_much(run: RunMetrics) -> Iterator[Finding]:
    """Report that the last pass has few tokens left to push."""
    for span in run.lasting_spans("clip_ratio/region_mean", above=0.4) if objective(run) not in SEQUENCE else ():
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the tokens are clipped and get no gradient in the last pass. Use fewer passes "
            "(train.passes) or minibatches (train.minibatches), a lower optim.lr, or wider bounds.",
        )


def clip_never_acts(run: RunMetrics) -> Iterator[Finding]:
    """Report that no token was clipped although a step makes several passes."""
    passes = run.span("updates/done")
    if objective(run) not in CLIPPED:
        return
    for span in run.lasting_spans("clip_ratio/region_mean", below=1e-6, least=4 * MIN_STEPS):
        if passes.values and run.mean("updates/done", span, unknown=1.0) > 1.5:
            yield span.finding(
                "note",
                f"with {run.mean('updates/done', span, unknown=1.0):.0f} passes per step no token was clipped: the "
                f"passes hardly move the policy{step_size(run, span)}. Raise optim.lr, so that they have an effect.",
            )


def moved_as_pushed(run: RunMetrics) -> Iterator[Finding]:
    """Report that tokens moved as pushed. Without signal the reference alone pushed them: no good news."""
    moved = run.span("moved_right_way")
    if (
        len(moved.steps) >= MIN_STEPS
        and moved.mean > 0.7
        and run.mean("frac_reward_zero_std", moved, unknown=0.0) < 0.8
    ):
        counted = sum(run.span("moved/tokens").values)
        among = f" ({counted:,.0f} tokens were measured)" if counted else ""
        yield moved.finding(
            "good",
            f"{moved.mean:.1%} of the pushed tokens moved as pushed, weighted by how far the pushes could move "
            f"them{among}.",
        )


def objective(run: RunMetrics) -> Any:
    """Return the name of the run's objective, or None if its recipe is not known."""
    return run.setting("train.objective.name", run.setting("train.objective"))


def step_size(run: RunMetrics, over: Span) -> str:
    """Describe the size of the steps: the learning rate, and the norm of the gradient if it is clipped."""
    rate, norm = (run.mean(metric, over, unknown=math.nan) for metric in ("learning_rate", "grad_norm"))
    limit = float(run.setting("optim.clip_norm", 1.0))
    description = "" if math.isnan(rate) else f" (learning rate {rate:.2g})"
    if norm > 10 * limit:
        description += f"; the gradient norm, {norm:.3g}, is clipped to {limit:g} (optim.clip_norm)"
    return description
