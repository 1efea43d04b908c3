"""Rules about single tokens: were they pushed to some effect?"""

import math
from collections.abc import Iterator

from outdo.doctor.series import LASTING, Finding, Run, Span

CLIPPED = ("grpo", "grpo_clip", "ppo", "dr_grpo", "dapo", "bnpo", "reinforce_pp", "rloo_clip")
"""Objectives whose clip is on the ratio of a token or an answer: with several updates it should act now and then."""


def not_moving(run: Run) -> Iterator[Finding]:
    """Pushed, and still where they were."""
    for span in run.lasting("moved_not", above=0.5):
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of what was pushed did not move: the steps are too small"
            f"{step_size(run, span)}. Raise optim.lr, or take more train.updates.",
        )


def moving_away(run: Run) -> Iterator[Finding]:
    """Pushed one way, gone the other, by the probability that moved."""
    for span in run.lasting("attained", below=-0.01):
        wrong = run.of("moved_wrong_way", span.steps[0], span.steps[-1])
        share = f"; {wrong.mean:.0%} of what was pushed went the wrong way" if wrong.values else ""
        yield span.finding(
            "warning",
            f"more probability moved against the pushes than with them (attained {span.mean:.1%}{share}): the "
            f"steps are too large, and undo one another{step_size(run, span)}. Lower optim.lr, or take more "
            "train.prompts.",
        )


def overshooting(run: Run) -> Iterator[Finding]:
    """Farther than asked."""
    for span in run.lasting("overshoot", above=0.15):
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
            'uncertain tokens alone (the preparation high_entropy), or set targets (train.objective = "target").',
        )


def out_of_reach(run: Run) -> Iterator[Finding]:
    """Bounds that bind nothing."""
    for span in run.lasting("unreachable", above=0.8):
        yield span.finding(
            "note",
            f"for {span.mean:.0%} of the pushed tokens the bound is beyond probability 1: the clip binds almost "
            'nothing. An objective with targets (train.objective = "target") sets ones that can be reached.',
        )


def clipped_too_much(run: Run) -> Iterator[Finding]:
    """Updates with nothing left to push."""
    for span in run.lasting("clip_ratio/region_mean", above=0.4):
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the tokens are clipped, and get no gradient in the last update. Take fewer "
            "train.updates or train.minibatches, a lower optim.lr, or wider bounds.",
        )


def clip_never_acts(run: Run) -> Iterator[Finding]:
    """Several updates, and no token came near a bound."""
    passes = run.of("updates/done")
    if run.setting("train.objective.name", run.setting("train.objective")) not in CLIPPED:
        return
    for span in run.lasting("clip_ratio/region_mean", below=1e-6, least=4 * LASTING):
        if passes.values and run.mean("updates/done", span, unknown=1.0) > 1.5:
            yield span.finding(
                "note",
                f"with {run.mean('updates/done', span, unknown=1.0):.0f} updates a step not one token was clipped: "
                f"they hardly move the policy{step_size(run, span)}. A higher optim.lr would use them.",
            )


def pushes_arrived(run: Run) -> Iterator[Finding]:
    """Tokens did as they were told."""
    moved = run.of("moved_right_way")
    if len(moved.steps) >= LASTING and moved.mean > 0.7:
        counted = sum(run.of("moved/tokens").values)
        among = f" ({counted:,.0f} tokens were measured)" if counted else ""
        yield moved.finding("good", f"{moved.mean:.1%} of what the pushes could move went their way{among}.")


def step_size(run: Run, over: Span) -> str:
    """What the numbers say of the size of the steps: the learning rate, and a gradient that is clipped."""
    rate, norm = (run.mean(metric, over, unknown=math.nan) for metric in ("learning_rate", "grad_norm"))
    limit = float(run.setting("optim.clip_norm", 1.0))
    said = "" if math.isnan(rate) else f" (learning rate {rate:.2g})"
    if norm > 10 * limit:
        said += f", and the gradient, {norm:.3g} long, is cut to {limit:g} (optim.clip_norm)"
    return said
