"""Evaluate a policy on questions, with confidence intervals."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment
from outdo.run.evaluation.held_out_completions import HeldOutCompletion
from outdo.run.evaluation.intervals import difference_interval, interval, mean_interval
from outdo.run.metrics.across_questions import distinct_words
from outdo.types import Group, Prompt, Rollout
from outdo.utils.outcome import mcnemar
from outdo.utils.text import NO_SPREAD, between, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The answers to n questions, k each, and their statistics. Shares are between 0 and 1.

    What a right answer is, `outdo.rewards.right` says. Where that is not defined, only the rewards count.
    """

    groups: Sequence[Group]
    k: int
    majority: Sequence[Rollout] = ()  # an answer with the most votes to each question, where votes were counted

    @property
    def has_verdicts(self) -> bool:
        """Whether it is defined which answers are right: at least one answer got a verdict."""
        return any(rollout.right is not None for group in self.groups for rollout in group.rollouts)

    @property
    def right(self) -> list[int]:
        """The number of right answers among the k to each question. An answer without a verdict is not right. [n]"""
        return [sum(rollout.right is True for rollout in group.rollouts) for group in self.groups]

    @property
    def accuracy(self) -> float:
        """pass@1: the share of all answers that are right."""
        return sum(self.right) / (self.k * len(self.groups))

    @property
    def question_rewards(self) -> list[float]:
        """The mean reward of the scored answers to each question; questions without one are left out."""
        scored = [[each.reward for each in group.rollouts if each.scored] for group in self.groups]
        return [math.fsum(rewards) / len(rewards) for rewards in scored if rewards]

    @property
    def reward_ci95(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean of `question_rewards`; of rewards that are all 0 or 1 as `ci95`."""
        rewards = [each.reward for group in self.groups for each in group.rollouts if each.scored]
        if set(rewards) <= {0.0, 1.0}:
            return interval(self.question_rewards, len(rewards))
        return mean_interval(self.question_rewards)

    @property
    def reward_parts(self) -> dict[str, float]:
        """The mean of each reward before its weight, over the answers that it gave a value."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for group in self.groups:
            for name, value in ((name, v) for rollout in group.rollouts for name, v in rollout.reward_parts.items()):
                values[name] += [] if value is None else [value]
        return {name: math.fsum(each) / len(each) for name, each in values.items() if each}

    def metrics(self, kind: str) -> dict[str, float]:
        """Return the numbers of an evaluation of a kind (`outdo.utils.outcome.EVALUATIONS`), as a run keeps them.

        `greedy` is the share of right answers where that is defined, `greedy_reward` the mean reward, both with the
        ends of their 95 % confidence intervals; `greedy_rewards/NAME/mean` is each part, if there are several, and
        `greedy_distinct_words` what `distinct_words` returns of the answers.
        """
        numbers: dict[str, float] = {}
        if self.has_verdicts:
            low, high = self.ci95
            numbers |= {kind: self.accuracy, f"{kind}_low": low, f"{kind}_high": high}
        if rewards := self.question_rewards:
            low, high = self.reward_ci95
            mean = math.fsum(rewards) / len(rewards)
            numbers |= {f"{kind}_reward": mean, f"{kind}_reward_low": low, f"{kind}_reward_high": high}
        parts = self.reward_parts
        if len(parts) > 1:
            numbers |= {f"{kind}_rewards/{name}/mean": value for name, value in parts.items()}
        words = distinct_words(rollout.text for group in self.groups for rollout in group.rollouts)
        return numbers if words is None else numbers | {f"{kind}_distinct_words": words}

    def completions(self, kind: str) -> Iterator[HeldOutCompletion]:
        """Yield every answer as `outdo.run.evaluation.held_out_completions` writes it."""
        for group in self.groups:
            for sample, rollout in enumerate(group.rollouts):
                yield {
                    "kind": kind,
                    "id": group.prompt.id,
                    "sample": sample,
                    "prompt": group.prompt.text,
                    "answer": group.prompt.answer,
                    **({"prefill": rollout.prefill} if rollout.prefill else {}),
                    "completion": rollout.text,
                    "right": rollout.right,
                    "reward": rollout.reward if rollout.scored else None,
                    "parts": dict(rollout.reward_parts),
                    "status": rollout.status,
                    "finish_reason": str(rollout.finish_reason),
                    "tokens": rollout.sampled_tokens,
                }

    def pass_at(self, k: int) -> float:
        """Return pass@k: the chance that at least one of k answers is right, averaged over the questions."""
        return sum(pass_at_k(self.k, count, k) for count in self.right) / len(self.groups)

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95 % confidence interval of `accuracy`; the questions are the sample."""
        return interval([count / self.k for count in self.right], self.k * len(self.groups))

    def summary(self) -> dict[str, float | int | list[float]]:
        """Return the numbers that `outdo eval --json` prints."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        cut = sum(rollout.truncated for rollout in rollouts)
        failed = sum(not rollout.scored for rollout in rollouts)
        several = sorted({2**power for power in range(1, self.k.bit_length())} | {self.k} - {1})
        return {
            **(self._shares_right(several) if self.has_verdicts else {}),
            **self._reward_summary(),
            "mean_length": sum(rollout.sampled_tokens for rollout in rollouts) / len(rollouts),
            "truncated": cut / len(rollouts),
            "unscored": failed,
            "n": len(self.groups),
            "k": self.k,
        }

    def _shares_right(self, several: Sequence[int]) -> dict[str, float | list[float]]:
        return {
            "pass@1": self.accuracy,
            "ci95": list(self.ci95),
            **{f"pass@{k}": self.pass_at(k) for k in several},
            **self._majority_summary(),
        }

    def _reward_summary(self) -> dict[str, float | list[float]]:
        rewards, parts = self.question_rewards, self.reward_parts
        if not rewards:
            return {}
        summary = {"reward": math.fsum(rewards) / len(rewards), "reward_ci95": list(self.reward_ci95)}
        return summary | ({f"rewards/{name}/mean": value for name, value in parts.items()} if len(parts) > 1 else {})

    def _majority_summary(self) -> dict[str, float]:
        if not self.majority:
            return {}
        return {f"maj@{self.k}": sum(rollout.right is True for rollout in self.majority) / len(self.majority)}


Vote = Callable[[Sequence[Sequence[str]]], Sequence[int]]
"""Returns for each group of answers, each with its prefill, the index of one with the most common answer."""


def evaluate(
    engine: Engine,
    environment: Environment,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    *,
    k: int = 1,
    step: int = 0,
    purpose: str = "eval",
    vote: Vote | None = None,
) -> Evaluation:
    """Sample k answers to every question and score them. At temperature 0 they would be equal, so k is 1.

    `vote` counts the votes of maj@k, as `outdo.rewards.matchers.majorities` does.
    """
    k = 1 if sampling.temperature == 0 else k
    groups = environment.rollouts(engine, prompts, k, sampling, step=step, purpose=purpose)
    if vote is None:
        return Evaluation(groups=groups, k=k)
    elected = vote([[rollout.prefill + rollout.text for rollout in group.rollouts] for group in groups])
    majority = [group.rollouts[index] for group, index in zip(groups, elected, strict=True)]
    return Evaluation(groups=groups, k=k, majority=majority)


def pass_at_k(n: int, right: int, k: int) -> float:
    """Compute the chance that one of k answers, drawn from n without replacement, is right: 1 - C(n - c, k) / C(n, k).

    Unbiased; Chen et al. 2021 (arXiv 2107.03374) equation 1.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} answers per question, not {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """How the answers of a second model differ from those of a first one to the same questions."""

    by: Literal["right", "reward"]  # what was compared: the share of right answers, or else the mean reward
    difference: float  # second minus first, averaged over the questions
    ci95: tuple[float, float]  # of the difference; the questions are the sample
    better: int  # questions whose first answer is better by the second model; with verdicts: right instead of wrong
    worse: int
    p: float  # of McNemar's exact test of these counts; of rewards it is the exact sign test

    def __str__(self) -> str:
        style, test = ("+.1%", "McNemar's exact test") if self.by == "right" else ("+.3f", "exact sign test")
        ends = between(*self.ci95, f"{{:{style}}}".format)
        interval = ends if ends == NO_SPREAD else f"95 % interval {ends}"
        changed = f"{counted(self.better, 'question')} better, {self.worse} worse, {test} p = {self.p:.2g}"
        return f"difference ({self.by}): {self.difference:{style}} ({interval}); {changed}"


def compare_paired(first: Evaluation, second: Evaluation) -> PairedComparison | None:
    """Compare two evaluations on the same questions, in the same order.

    Pairs remove the spread between easy and hard questions: the interval is that of the mean of the differences. The
    test needs one answer for each question, and takes the first. Questions without a reward are left out; None if
    none is left.
    """
    by: Literal["right", "reward"] = "right" if first.has_verdicts and second.has_verdicts else "reward"
    pairs = [
        pair
        for groups in zip(first.groups, second.groups, strict=True)
        if all(pair := [_values(group, by) for group in groups])
    ]
    if not pairs:
        return None
    differences = [_mean(after) - _mean(before) for before, after in pairs]
    better = sum(after[0] > before[0] for before, after in pairs)
    worse = sum(after[0] < before[0] for before, after in pairs)
    return PairedComparison(
        by=by,
        difference=_mean(differences),
        ci95=difference_interval(differences, first.k) if by == "right" else mean_interval(differences),
        better=better,
        worse=worse,
        p=mcnemar(better, worse),
    )


def _values(group: Group, by: Literal["right", "reward"]) -> list[float]:
    """Return the verdicts on the answers of a group as 1 and 0, or the rewards of those that are scored."""
    if by == "right":
        return [float(rollout.right is True) for rollout in group.rollouts]
    return [rollout.reward for rollout in group.rollouts if rollout.scored]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
