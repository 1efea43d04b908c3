"""How good a policy is on questions it has not been trained on, and how sure that is."""

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
    """The answers to n questions, k each, and what they say. Shares are of 1."""

    groups: Sequence[Group]
    k: int

    @property
    def right(self) -> list[int]:
        """How many of the k answers to each question are right. [n]"""
        return [sum(rollout.right for rollout in group.rollouts) for group in self.groups]

    @property
    def accuracy(self) -> float:
        """pass@1: the share of all answers that are right."""
        return sum(self.right) / (self.k * len(self.groups))

    def pass_at(self, k: int) -> float:
        """pass@k: the chance that one of k answers is right, the mean over the questions."""
        return sum(pass_at_k(self.k, count, k) for count in self.right) / len(self.groups)

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95 % confidence interval of `accuracy`, questions being the sample."""
        return interval([count / self.k for count in self.right])

    def summary(self) -> dict[str, float | int | list[float]]:
        """The numbers that `outdo eval --json` prints."""
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
    """Ask every question k times. At temperature 0 the answers would be equal, and k is 1."""
    k = 1 if sampling.temperature == 0 else k
    groups = environment.rollouts(engine, prompts, k, sampling, step=step, purpose=purpose)
    return Evaluation(groups=groups, k=k)


def majority(group: Group) -> Rollout:
    """A rollout with the commonest final answer; among equally common ones, that which came first."""
    numbers = [(rollout.text, final_number(rollout.text)) for rollout in group.rollouts]
    answers = [text.strip() if number is None else number for text, number in numbers]
    commonest, _ = Counter(answers).most_common(1)[0]
    return group.rollouts[answers.index(commonest)]


def pass_at_k(n: int, right: int, k: int) -> float:
    """The chance that of k answers drawn from n without replacement one is right: 1 - C(n - c, k) / C(n, k).

    Unbiased; Chen et al. 2021 (arXiv 2107.03374) equation 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} answers per question, not {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def interval(shares: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the mean of n shares in [0, 1], one per question.

    Wilson's, with n as the number of questions scaled by how much less than a coin's the shares vary: answers to one
    question are not independent of each other, questions are. With one answer per question it is Wilson's own.
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
    """The change of every number that both have."""
    return {name: after[name] - before[name] for name in before if name in after}
