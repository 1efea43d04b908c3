"""Rules about the reward: does it return numbers, and does it pay for what is wanted?"""

import math
from collections.abc import Iterator

from outdo.extras.doctor.reward_parts import reward_parts
from outdo.extras.doctor.series import FEWEST_STEPS, MIN_STEPS, Finding, RunMetrics, Span
from outdo.utils.text import counted

COMPARED = 20
"""The answers that have to be compared with another one of their group before a correlation says something."""


def failed_rewards(run: RunMetrics) -> Iterator[Finding]:
    """Report answers for which the reward returned no number."""
    for kind in ("failed", "timed_out", "non_finite", "unavailable"):
        found = run.span(f"reward_status/{kind}")
        if count := sum(found.values):
            yield found.finding(
                "warning",
                f"{counted(round(count), 'answer')} in {counted(len(found.steps), 'step')} got no reward ({kind}), so "
                "that the update left them out.",
                "`outdo check` shows what the reward returns for examples; reward_limits.timeout is its time limit.",
            )


def constant_reward(run: RunMetrics) -> Iterator[Finding]:
    """Report that all answers of the run have the same reward; `too_hard` reports it if this reward is 0."""
    reward, equal = run.span("reward"), run.span("frac_reward_zero_std")
    if len(reward.steps) < FEWEST_STEPS or min(equal.values, default=0.0) < 1.0 or not any(reward.values):
        return
    if max(reward.values) - min(reward.values) <= 1e-6 * abs(reward.mean):
        yield reward.finding(
            "warning",
            f"every answer has the reward {reward.mean:.4g}, so the policy learns nothing.",
            "Let the reward look at the answer: `outdo check` shows what it returns for a right, an empty and a wrong "
            "one. If it does look, the questions are far too easy.",
        )


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
    if span := run.lasting("reward_right_correlation", below=0.2):
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
    if span := run.lasting("reward_length_correlation", above=0.93, least=least_steps(run)):
        yield _by_length(span, "longer")


def reward_against_length(run: RunMetrics) -> Iterator[Finding]:
    """Report that the length of an answer determines its reward: the shorter, the higher."""
    if span := run.lasting("reward_length_correlation", below=-0.93, least=least_steps(run)):
        yield _by_length(span, "shorter")


def least_steps(run: RunMetrics) -> int | None:
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


def conflicting_reward_parts(run: RunMetrics) -> Iterator[Finding]:
    """Report that one part of the reward that is trained on rose at the expense of another."""
    trained = [part for part in reward_parts(run) if not part.watched]
    rising = ", ".join(part.name for part in trained if part.change > 0)
    for part in trained:
        if rising and part.ends and part.change < 0:
            first, last = part.ends
            yield last.finding(
                "warning",
                f"the reward part {part.name} fell from {first.mean:.3g} to {last.mean:.3g} while {rising} rose.",
                'Change their weights, or standardise each part separately (train.advantage = "gdpo").',
            )
