"""Rules about single tokens: were they pushed to some effect?"""

import math
from collections.abc import Iterator
from typing import Any

from outdo.observability.doctor.series import LASTING, Finding, Run, Span, change

CLIPPED = ("grpo", "grpo_clip", "ppo", "dr_grpo", "dapo", "bnpo", "reinforce_pp", "rloo_clip")
"""Objectives whose clip is on the ratio of a token or an answer: with several updates it should act now and then."""

SEQUENCE = ("gspo", "gspo_token", "luspo")
"""Objectives that clip whole answers: what a bound asks of one token is tiny there, and says little of it."""

HARDLY = 0.001
"""Of the way to the bounds. The quickstart goes a few hundredths of it in a step at a learning rate that works (1e-4),
and a few ten-thousandths at one that is a hundred times too low."""


def not_moving(run: Run) -> Iterator[Finding]:
    """Pushed, and still where they were."""
    for span in run.lasting("moved_not", above=0.5):
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of what was pushed did not move: the steps are too small"
            f"{step_size(run, span)}. Raise optim.lr, or take more train.updates.",
        )


def hardly_moving(run: Run) -> Iterator[Finding]:
    """Moved as pushed, and next to nowhere. A single step may be one of few tokens, hence most of them."""
    way, ends = run.of("attained"), run.ends("reward")
    small = sum(abs(value) < HARDLY for value in way.values)
    risen = ends is not None and change(*ends) > 0
    if len(way.steps) >= LASTING and small >= 0.75 * len(way.steps) and not risen:
        yield way.finding(
            "warning",
            f"in {small} of the {len(way.steps)} steps measured, tokens went less than {HARDLY:.1%} of the way to the "
            f"bounds, and the reward has not risen: the steps are too small{step_size(run, way)}. Raise optim.lr, or "
            "take more train.updates.",
        )


def moving_away(run: Run) -> Iterator[Finding]:
    """Pushed one way, gone the other, by the probability that moved."""
    for span in run.lasting("attained", below=-0.01):
        wrong = run.of("moved_wrong_way", span.steps[0], span.steps[-1])
        if objective(run) in SEQUENCE or (wrong.values and wrong.mean < 0.5):
            continue
        share = f"; {wrong.mean:.0%} of what was pushed went the wrong way" if wrong.values else ""
        yield span.finding(
            "warning",
            f"more probability moved against the pushes than with them (attained {span.mean:.1%}{share}): the "
            f"steps are too large, and undo one another{step_size(run, span)}. Lower optim.lr, or take more "
            "train.prompts.",
        )


def overshooting(run: Run) -> Iterator[Finding]:
    """Farther than asked."""
    for span in run.lasting("overshoot", above=0.1) if objective(run) not in SEQUENCE else ():
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the tokens went beyond the bound that the objective sets them"
            f"{step_size(run, span)}. Lower optim.lr, take fewer train.updates, or end them early (train.stop).",
        )


def spent_on_certain(run: Run) -> Iterator[Finding]:
    """A push without effect."""
    for span in run.lasting("certain", above=0.95):
        yield span.finding(
            "note",
            f"{span.mean:.0%} of the push goes to tokens that are already above 99 %, and can hardly move. Train on "
            "uncertain tokens alone (the preparation high_entropy).",
        )


def out_of_reach(run: Run) -> Iterator[Finding]:
    """Bounds that bind nothing."""
    for span in run.lasting("unreachable", above=0.8):
        yield span.finding(
            "note",
            f"for {span.mean:.0%} of the pushed tokens the bound is beyond probability 1: the clip binds almost "
            'nothing. The objective "target" sets ones that can be reached; where it was compared it learnt less '
            "(docs/methods/target.md).",
        )


def clipped_too_much(run: Run) -> Iterator[Finding]:
    """Updates with nothing left to push."""
    for span in run.lasting("clip_ratio/region_mean", above=0.4) if objective(run) not in SEQUENCE else ():
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the tokens are clipped, and get no gradient in the last update. Take fewer "
            "train.updates or train.minibatches, a lower optim.lr, or wider bounds.",
        )


def clip_never_acts(run: Run) -> Iterator[Finding]:
    """Several updates, and no token came near a bound."""
    passes = run.of("updates/done")
    if objective(run) not in CLIPPED:
        return
    for span in run.lasting("clip_ratio/region_mean", below=1e-6, least=4 * LASTING):
        if passes.values and run.mean("updates/done", span, unknown=1.0) > 1.5:
            yield span.finding(
                "note",
                f"with {run.mean('updates/done', span, unknown=1.0):.0f} updates a step not one token was clipped: "
                f"they hardly move the policy{step_size(run, span)}. A higher optim.lr would use them.",
            )


def pushes_arrived(run: Run) -> Iterator[Finding]:
    """Tokens did as they were told. Where no group is mixed, that was the reference, and no news."""
    moved = run.of("moved_right_way")
    if len(moved.steps) >= LASTING and moved.mean > 0.7 and run.mean("frac_mixed", moved, unknown=1.0) > 0.2:
        counted = sum(run.of("moved/tokens").values)
        among = f" ({counted:,.0f} tokens were measured)" if counted else ""
        yield moved.finding("good", f"{moved.mean:.1%} of what the pushes could move went their way{among}.")


def objective(run: Run) -> Any:
    """The name of the run's objective, as far as its recipe is known."""
    return run.setting("train.objective.name", run.setting("train.objective"))


def step_size(run: Run, over: Span) -> str:
    """What the numbers say of the size of the steps: the learning rate, and a gradient that is clipped."""
    rate, norm = (run.mean(metric, over, unknown=math.nan) for metric in ("learning_rate", "grad_norm"))
    limit = float(run.setting("optim.clip_norm", 1.0))
    said = "" if math.isnan(rate) else f" (learning rate {rate:.2g})"
    if norm > 10 * limit:
        said += f", and the gradient, {norm:.3g} long, is cut to {limit:g} (optim.clip_norm)"
    return said
