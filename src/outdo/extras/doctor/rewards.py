"""Rules about the reward: does it return numbers, and does it pay for what is wanted?"""

import math
from collections.abc import Iterator

from outdo.extras.doctor.method import advantage, is_trained_on_rewards, sums_decide, without_signal
from outdo.extras.doctor.series import FEWEST_STEPS, MIN_STEPS, Finding, RunMetrics, Span
from outdo.utils.text import counted

COMPARED = 20
"""The answers that have to be compared with another one of their group before a correlation says something."""


def failed_rewards(run: RunMetrics) -> Iterator[Finding]:
    """Report answers for which the reward returned no number."""
    for kind in ("failed", "timed_out", "non_finite", "unavailable"):
        statuses = run.span(f"reward_status/{kind}")
        if count := sum(statuses.values):
            yield statuses.finding(
                "warning",
                f"{counted(round(count), 'answer')} in {counted(len(statuses.steps), 'step')} got no reward ({kind}), "
                "so that the update left them out.",
                "`outdo check` shows what the reward returns for examples; reward_limits.timeout is its time limit.",
            )


def constant_reward(run: RunMetrics) -> Iterator[Finding]:
    """Report that all answers of the run have the same reward; `too_hard` reports it if no answer is right."""
    reward, spread = run.span("reward"), run.span("reward_std")
    if not reward.steps or len(spread.steps) < FEWEST_STEPS or not (_same_for_all(run) or sums_decide(run)):
        return
    if min(run.span("frac_reward_zero_std").values, default=1.0) < 1.0:
        return
    rounding = 1e-6 * abs(reward.mean)  # of a mean and a deviation in float32
    never_right = not any(reward.values) and run.span("frac_all_wrong").values
    if max(reward.values) - min(reward.values) <= rounding and max(spread.values) <= rounding and not never_right:
        yield reward.finding(
            "warning",
            f"every answer has the reward {reward.mean:.4g}, so that it teaches the policy nothing.",
            "Let the reward look at the answer: `outdo check` shows what it returns for a right, an empty and a wrong "
            "one. If it does look, the questions are far too easy.",
        )


def _same_for_all(run: RunMetrics) -> bool:
    """Return whether a constant sum of rewards is all that the advantage gets."""
    metric = without_signal(run)
    all_equal = bool(metric) and min(run.span(metric).values, default=0.0) == 1.0
    return all_equal or (advantage(run) in ("gae", "reward", "reinforce_pp") and not run.setting("environment"))


def random_reward(run: RunMetrics) -> Iterator[Finding]:
    """Report that the same text gets different rewards."""
    if span := run.lasting("reward_disagreement", above=0.25):
        yield span.finding(
            "warning",
            f"of the texts that several answers to a question share, {span.mean:.0%} have different rewards: the "
            "reward is partly random, and trains on its noise.",
            "Make it depend on question and answer alone. A model that scores should do so at temperature 0.",
        )


def reward_against_right(run: RunMetrics) -> Iterator[Finding]:
    """Report that the reward does not follow what is right, or is even lower where the answer is right."""
    span = run.lasting("reward_right_correlation", below=0.2)
    if span and is_trained_on_rewards(run):
        against = span.mean < -0.1
        what = "the reward is lower where an answer is right" if against else "the reward does not follow what is right"
        yield span.finding(
            "warning",
            f"within groups {what} (correlation {span.mean:.2f}): the policy learns "
            f"{'to answer wrongly' if against else 'something else'}.",
            "Look at the sign of the reward and at the weights of its parts; see `outdo check`."
            if against
            else "Look at the weights of the reward's parts: one of them outweighs the right answer.",
        )


def reward_follows_length(run: RunMetrics) -> Iterator[Finding]:
    """Report that the length of an answer determines its reward: the longer, the higher."""
    span = run.lasting("reward_length_correlation", above=0.93, least=_least_steps(run))
    if span and is_trained_on_rewards(run):
        yield _by_length(span, "longer")


def reward_against_length(run: RunMetrics) -> Iterator[Finding]:
    """Report that the length of an answer determines its reward: the shorter, the higher."""
    span = run.lasting("reward_length_correlation", below=-0.93, least=_least_steps(run))
    if span and is_trained_on_rewards(run):
        yield _by_length(span, "shorter")


def _least_steps(run: RunMetrics) -> int | None:
    """Return in how many steps a correlation has to last; None for the usual number, if a step has enough answers.

    The first answer of each group is compared with none; of one question with two answers, the correlation is always 1
    or -1. Chance keeps its sign for a few steps, but not until `COMPARED` answers agree.
    """
    scored, groups = run.span("num_scored"), run.span("num_groups")
    if not scored.values or not groups.values:
        return None
    compared = max(1.0, scored.mean - groups.mean)
    return math.ceil(COMPARED / compared) if compared * MIN_STEPS < COMPARED else None


def _by_length(span: Span, direction: str) -> Finding:
    return span.finding(
        "warning",
        f"within groups the reward follows the length of the answer (correlation {span.mean:.2f}): the policy learns "
        f"to answer {direction}.",
        "Reward what an answer should contain. If length is a part of the reward, lower its weight.",
    )
