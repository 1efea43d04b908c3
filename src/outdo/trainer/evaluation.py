"""Evaluate a policy on questions, with confidence intervals."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outdo.rewards.exact import final_number
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment
from outdo.types import FinishReason, Group, Prompt, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The answers to n questions, k each, and their statistics. Shares are between 0 and 1."""

    groups: Sequence[Group]
    k: int

    @property
    def right(self) -> list[int]:
        """The number of right answers among the k to each question. [n]"""
        return [sum(rollout.right for rollout in group.rollouts) for group in self.groups]

    @property
    def accuracy(self) -> float:
        """pass@1: the share of all answers that are right."""
        return sum(self.right) / (self.k * len(self.groups))

    def pass_at(self, k: int) -> float:
        """Return pass@k: the chance that at least one of k answers is right, averaged over the questions."""
        return sum(pass_at_k(self.k, count, k) for count in self.right) / len(self.groups)

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95 % confidence interval of `accuracy`; the questions are the sample."""
        return interval([count / self.k for count in self.right])

    def summary(self) -> dict[str, float | int | list[float]]:
        """Return the numbers that `outdo eval --json` prints."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        cut = sum(rollout.finish_reason is not FinishReason.stop for rollout in rollouts)
        failed = sum(not rollout.scored for rollout in rollouts)
        several = sorted({2**power for power in range(1, self.k.bit_length())} | {self.k} - {1})
        return {
            "pass@1": self.accuracy,
            **{f"pass@{k}": self.pass_at(k) for k in several},
            f"maj@{self.k}": sum(majority(group).right for group in self.groups) / len(self.groups),
            "mean_length": sum(len(rollout.token_ids) for rollout in rollouts) / len(rollouts),
            "truncated": cut / len(rollouts),
            "unscored": failed,
            "n": len(self.groups),
            "k": self.k,
            "ci95": list(self.ci95),
        }


def evaluate(
    engine: Engine,
    environment: Environment,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    *,
    k: int = 1,
    step: int = 0,
    purpose: str = "eval",
) -> Evaluation:
    """Sample k answers to every question and score them. At temperature 0 they would be equal, so k is 1."""
    k = 1 if sampling.temperature == 0 else k
    groups = environment.rollouts(engine, prompts, k, sampling, step=step, purpose=purpose)
    return Evaluation(groups=groups, k=k)


def majority(group: Group) -> Rollout:
    """Return a rollout with the most common final answer; of equally common ones, the first."""
    numbers = [(rollout.text, final_number(rollout.text)) for rollout in group.rollouts]
    answers = [text.strip() if number is None else number for text, number in numbers]
    commonest, _ = Counter(answers).most_common(1)[0]
    return group.rollouts[answers.index(commonest)]


def pass_at_k(n: int, right: int, k: int) -> float:
    """Compute the chance that one of k answers, drawn from n without replacement, is right: 1 - C(n - c, k) / C(n, k).

    Unbiased; Chen et al. 2021 (arXiv 2107.03374) equation 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} answers per question, not {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def interval(shares: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % confidence interval of the mean of n shares in [0, 1], one per question.

    It is Wilson's interval, where n is the number of questions times the ratio of a coin's variance to that of the
    shares: questions are independent of each other, the answers to one question are not. With one answer per question
    this is Wilson's interval itself.
    """
    n, mean = len(shares), math.fsum(shares) / len(shares)
    coin = mean * (1 - mean)
    variance = math.fsum((share - mean) ** 2 for share in shares) / n
    n = n * coin / variance if variance > 0 and coin > 0 else n
    z = 1.959964
    centre, spread = mean + z * z / (2 * n), z * math.sqrt(coin / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the change of every number that both have."""
    return {name: after[name] - before[name] for name in before if name in after}
