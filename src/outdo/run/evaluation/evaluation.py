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

    What a right answer is, `outdo.rewards.right` says. Where that is not defined, only the rewards count. An answer
    without a verdict, as one whose reward failed, is neither right nor wrong: no share counts it.
    """

    groups: Sequence[Group]
    k: int
    majority: Sequence[Rollout] = ()  # an answer with the most votes to each question, where votes were counted

    @property
    def verdicts(self) -> list[list[bool]]:
        """Whether each answer is right, by question, without the answers that have no verdict. [n][up to k]"""
        return [[rollout.right for rollout in group.rollouts if rollout.right is not None] for group in self.groups]

    @property
    def has_verdicts(self) -> bool:
        """Whether at least one answer got a verdict."""
        return any(self.verdicts)

    @property
    def shares(self) -> list[float]:
        """The share of right answers to each question; questions without a verdict are left out."""
        return [sum(verdicts) / len(verdicts) for verdicts in self.verdicts if verdicts]

    @property
    def accuracy(self) -> float:
        """pass@1: the mean of `shares`."""
        return _mean(self.shares)

    @property
    def without_verdict(self) -> int:
        """The number of answers without a verdict."""
        return self.answers - sum(map(len, self.verdicts))

    @property
    def without_reward(self) -> int:
        """The number of answers without a reward."""
        return sum(not rollout.scored for group in self.groups for rollout in group.rollouts)

    @property
    def answers(self) -> int:
        """The number of all answers."""
        return sum(len(group.rollouts) for group in self.groups)

    @property
    def question_rewards(self) -> list[float]:
        """The mean reward of the scored answers to each question; questions without one are left out."""
        scored = [[rollout.reward for rollout in group.rollouts if rollout.scored] for group in self.groups]
        return [math.fsum(rewards) / len(rewards) for rewards in scored if rewards]

    @property
    def reward_ci95(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean of `question_rewards`; of rewards that are all 0 or 1 as `ci95`."""
        rewards = [rollout.reward for group in self.groups for rollout in group.rollouts if rollout.scored]
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
        return {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items() if numbers}

    def metrics(self, kind: str, *, defined: bool = False) -> dict[str, float]:
        """Return the numbers of an evaluation of a kind (`outdo.utils.outcome.EVALUATIONS`), as a run keeps them.

        `greedy` is the share of right answers where that is defined, `greedy_reward` the mean reward, both with the
        ends of their 95 % confidence intervals; `greedy_rewards/NAME/mean` is each part, if there are several, and
        `greedy_distinct_words` what `distinct_words` returns of the answers. Where answers are left out,
        `greedy_without_verdict` or `greedy_without_reward` is their number, and `greedy_answers` that of all.

        `defined` tells that the rewards give verdicts, so that answers lack one even if all of them do.
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
        numbers |= self._left_out(kind, defined=defined or self.has_verdicts)
        words = distinct_words(rollout.text for group in self.groups for rollout in group.rollouts)
        return numbers if words is None else numbers | {f"{kind}_distinct_words": words}

    def _left_out(self, kind: str, *, defined: bool) -> dict[str, float]:
        """Return how many answers the share of right answers and the mean reward leave out, where they do."""
        counts = {"verdict": self.without_verdict if defined else 0, "reward": self.without_reward}
        missing = {f"{kind}_without_{what}": float(count) for what, count in counts.items() if count}
        return missing | {f"{kind}_answers": float(self.answers)} if missing else {}

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

    def pass_at(self, k: int) -> float | None:
        """Return pass@k: the chance that one of k answers is right, averaged over the questions (`pass_at_k`).

        A question with fewer than k verdicts is left out; None if no question has as many.
        """
        chances = [pass_at_k(len(verdicts), sum(verdicts), k) for verdicts in self.verdicts if len(verdicts) >= k]
        return _mean(chances) if chances else None

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95 % confidence interval of `accuracy`; the questions are the sample."""
        return interval(self.shares, self.answers - self.without_verdict)

    def summary(self, *, defined: bool = False) -> dict[str, float | int | list[float]]:
        """Return the numbers that `outdo eval --json` prints; for `defined` see `metrics`."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        cut = sum(rollout.truncated for rollout in rollouts)
        several = sorted({2**power for power in range(1, self.k.bit_length())} | {self.k} - {1})
        return {
            **self._shares_right(several, defined=defined),
            **self._reward_summary(),
            "mean_length": sum(rollout.sampled_tokens for rollout in rollouts) / len(rollouts),
            "truncated": cut / len(rollouts),
            "unscored": self.without_reward,
            "n": len(self.groups),
            "k": self.k,
        }

    def _shares_right(self, several: Sequence[int], *, defined: bool) -> dict[str, float | list[float]]:
        """Return pass@1, pass@k and maj@k, and how many answers and questions they leave out."""
        if not self.has_verdicts:
            return {"without_verdict": self.without_verdict} if defined else {}
        passes = {f"pass@{k}": share for k in several if (share := self.pass_at(k)) is not None}
        counts = {"without_verdict": self.without_verdict}
        for k in several:
            counts[f"left_out_of_pass@{k}"] = sum(len(verdicts) < k for verdicts in self.verdicts)
        elected = [rollout.right for rollout in self.majority if rollout.right is not None]
        votes = {f"maj@{self.k}": sum(elected) / len(elected)} if elected else {}
        counts[f"left_out_of_maj@{self.k}"] = len(self.majority) - len(elected)
        left_out = {name: count for name, count in counts.items() if count}
        return {"pass@1": self.accuracy, "ci95": list(self.ci95), **passes, **votes, **left_out}

    def _reward_summary(self) -> dict[str, float | list[float]]:
        rewards, parts = self.question_rewards, self.reward_parts
        if not rewards:
            return {}
        summary = {"reward": math.fsum(rewards) / len(rewards), "reward_ci95": list(self.reward_ci95)}
        return summary | ({f"rewards/{name}/mean": value for name, value in parts.items()} if len(parts) > 1 else {})


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

    `vote` counts the votes of maj@k, as `outdo.rewards.matchers.majorities` does. Raises `UserError` if the prompts
    bring inputs that the engine does not read.
    """
    engine.check_inputs(prompts)
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
    questions: int  # that were compared
    left_out: int  # questions to which one of the models has no answer with a verdict, or else with a reward

    def __str__(self) -> str:
        style, test = ("+.1%", "McNemar's exact test") if self.by == "right" else ("+.3f", "exact sign test")
        ends = between(*self.ci95, f"{{:{style}}}".format)
        interval = ends if ends == NO_SPREAD else f"95 % interval {ends}"
        changed = f"{counted(self.better, 'question')} better, {self.worse} worse, {test} p = {self.p:.2g}"
        what = "verdict" if self.by == "right" else "reward"
        asked = counted(self.questions + self.left_out, "question")
        left_out = f"; left out: {self.left_out:,} of {asked}, without a {what} from both" if self.left_out else ""
        return f"difference ({self.by}): {self.difference:{style}} ({interval}); {changed}{left_out}"


def compare_paired(first: Evaluation, second: Evaluation) -> PairedComparison | None:
    """Compare two evaluations on the same questions, in the same order.

    Pairs remove the spread between easy and hard questions: the interval is that of the mean of the differences. The
    test needs one answer for each question, and takes the first one with a verdict. Questions without a verdict from
    both models are left out; if all are, or right is not defined, the rewards are compared in the same way. None if no
    question has a reward from both.
    """
    for by in ("right", "reward"):
        pairs = _pairs(first, second, by)
        if pairs:
            return _comparison(pairs, by, len(first.groups))
    return None


Pairs = Sequence[tuple[Sequence[float], Sequence[float]]]
"""What counts of the answers of a first and of a second model to each question."""


def _pairs(first: Evaluation, second: Evaluation, by: Literal["right", "reward"]) -> Pairs:
    values = [[_values(group, by) for group in evaluation.groups] for evaluation in (first, second)]
    return [(before, after) for before, after in zip(*values, strict=True) if before and after]


def _comparison(pairs: Pairs, by: Literal["right", "reward"], questions: int) -> PairedComparison:
    differences = [_mean(after) - _mean(before) for before, after in pairs]
    better = sum(after[0] > before[0] for before, after in pairs)
    worse = sum(after[0] < before[0] for before, after in pairs)
    answers = 1 / _mean([1 / len(values) for pair in pairs for values in pair])
    return PairedComparison(
        by=by,
        difference=_mean(differences),
        ci95=difference_interval(differences, answers) if by == "right" else mean_interval(differences),
        better=better,
        worse=worse,
        p=mcnemar(better, worse),
        questions=len(pairs),
        left_out=questions - len(pairs),
    )


def _values(group: Group, by: Literal["right", "reward"]) -> list[float]:
    """Return the verdicts on the answers of a group as 1 and 0, or the rewards of those that are scored."""
    if by == "right":
        return [float(rollout.right) for rollout in group.rollouts if rollout.right is not None]
    return [rollout.reward for rollout in group.rollouts if rollout.scored]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
