"""What training, evaluation, the record, the page and the doctor mean by "right" and by "signal".

**Right** is a verdict on one answer and not the size of its reward. `outdo.rewards.right` has the rule. `Rollout.right`
and the column `right` of the record are True, False, or null: the verdict is not defined, or this answer got none. An
answer without a verdict is neither right nor wrong, and every share of right answers leaves it out. A run without a
verdict has no metric `right` and no metric `eval/greedy`; there nothing is called right, and the mean reward and its
parts stand in its place (`headline`).

**Signal** is an advantage that is not 0: the method decides what it compares, such as the rewards of answers, of turns,
or verdicts (`outdo.algorithms.advantages.signal`). The metric is `frac_zero_advantage`, the share of the groups without
signal. `frac_reward_zero_std`, as in TRL, is the share of the groups whose rewards have no spread.
"""

import math
from collections.abc import Container, Mapping

RIGHT = 1.0 - 1e-6
"""The least value of the reward that `eval.right` names, of an answer that counts as right: 1, up to rounding."""

EVALUATIONS = ("greedy", "sampled")
"""The two kinds of answers to held-out questions: at temperature 0, and at temperature 1."""


def headline(kind: str, known: Container[str]) -> str:
    """Return the name of the number that summarises an evaluation, such as `greedy` or `eval/greedy`.

    It is `kind` itself, the share of right answers, if `known` has it, and else `{kind}_reward`, the mean reward. Both
    have a 95 % confidence interval: the numbers with `_low` and `_high` after their name.
    """
    return kind if kind in known else f"{kind}_reward"


def left_out(name: str, numbers: Mapping[str, float]) -> str:
    """Return how many answers the number `name` of an evaluation leaves out; an empty text if it counts all of them.

    The share of right answers (`greedy`) has `3 of 12 without a verdict`, the mean reward (`greedy_reward`) `3 of 12
    without a reward`.
    """
    kind = name.removesuffix("_reward")
    what = "verdict" if kind == name else "reward"
    count, answers = (numbers.get(f"{kind}_{name}") for name in (f"without_{what}", "answers"))
    return f"{count:,.0f} of {answers:,.0f} without a {what}" if count and answers else ""


def mcnemar(fixed: int, broken: int) -> float:
    """Return the p-value of McNemar's exact two-sided test: min(1, 2 P(X <= min(fixed, broken))), X ~ Bin(n, 1/2).

    n = fixed + broken are the pairs that changed (McNemar 1947, in its exact binomial form); 1 without any. It is the
    probability of a difference at least as large if an answer changed in both directions with equal probability. Of
    rewards, where better and worse take the place of right and wrong, it is the exact sign test.
    """
    n, least = fixed + broken, min(fixed, broken)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n)
