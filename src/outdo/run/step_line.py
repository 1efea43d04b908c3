"""The parts of a step's line, and what the words of the lines of steps and evaluations mean."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from outdo.utils.outcome import EVALUATIONS
from outdo.utils.text import NO_SPREAD, counted

MEANINGS: Mapping[str, str] = {
    "reward": "mean of its answers, and the change",
    "demonstrations alone": "all answers of the step are of the data (data.demonstrations)",
    "no answer has a reward": "the reward function failed for all answers, or applies to none; nothing is learned",
    "no group has an advantage": "to the method, all answers to each question are equally good; nothing is learned",
    "right": "share of right answers",
    "update refused": "a gradient was NaN or infinite, so that the weights stayed as they were",
    "without a reward": "answers for which the reward function failed, or to which it does not apply",
    "without a verdict": "answers of which the rewards do not say whether they are right",
    "truncated": "share of answers that were cut off before their end",
    "rewards differ": "share of questions whose answers got different rewards: only these teach",
    "with an advantage": "share of questions that teach, where these are not the ones whose rewards differ",
    "sampler and trainer differ": "largest difference of a token's log-probability between sampling and training, more "
    "than rounding explains",
    "corrected": "tokens that weigh more or less in the loss, because trainer and sampler give them different "
    "probabilities",
    "moved as intended": "share of tokens whose probability moved the way that their rewards push it",
    "length": "mean tokens of an answer",
    "tokens/s": "tokens sampled per second",
    "held-out": "asked only to measure",
    "greedy": "answers of the likeliest token each time",
    "sampled": "answers at temperature 1",
    "in brackets": "95% confidence interval",
    NO_SPREAD: "all answers have the same reward",
}
"""What the words of the lines of steps and evaluations mean."""


class StepPart(NamedTuple):
    """A part of a step's line."""

    word: str  # a key of `MEANINGS`
    text: str  # with its number


def step_parts(metrics: Mapping[str, float], *, last_reward: float | None, rounding: float) -> list[StepPart]:
    """Return the parts of the line of a step with these metrics, the most important first.

    The reward has the difference from `last_reward`. The difference between sampler and trainer is a part if it is more
    than `rounding` nats.
    """
    moved = metrics.get("moved_as_intended")
    return [
        *_outcome(metrics, last_reward),
        *_faults(metrics),
        *_signal(metrics),
        *_sampling(metrics, rounding),
        *([] if moved is None else [StepPart("moved as intended", f"moved as intended {moved:.0%}")]),
        StepPart("length", f"length {metrics['completions/mean_length']:.0f}"),
        StepPart("tokens/s", f"{metrics['tokens_per_second']:,.0f} tokens/s"),
    ]


def legend(words: Iterable[str]) -> str:
    """Return what the words mean, on one line."""
    return "; ".join(f"{word} = {MEANINGS[word]}" for word in words)


def words_of_evaluation(parts: Sequence[str]) -> list[str]:
    """Return the words that have to be explained in the lines of an evaluation, of which these are the numbers."""
    kinds = [kind for kind in EVALUATIONS if any(part.startswith(f"{kind} ") for part in parts)]
    signs = {"in brackets": "(", **{word: word for word in (NO_SPREAD, "without a verdict", "without a reward")}}
    return ["held-out", *kinds, *(word for word, sign in signs.items() if any(sign in part for part in parts))]


def fitting(parts: Sequence[StepPart], room: int) -> list[StepPart]:
    """Return the first parts that fit into a line of `room` characters, with two spaces between; at least one."""
    widths = itertools.accumulate(len(part.text) + 2 for part in parts)
    return list(parts[: max(1, sum(width - 2 <= room for width in widths))])


def _outcome(metrics: Mapping[str, float], last_reward: float | None) -> list[StepPart]:
    """Return the mean reward and the share of right answers, or why there is no reward."""
    if "reward" not in metrics:
        if metrics.get("demonstrations/ratio") == 1:
            return [StepPart("demonstrations alone", "demonstrations alone")]
        dropped = metrics.get("dynamic_sampling/dropped", 0) > 0
        why = "no group has an advantage" if dropped else "no answer has a reward"
        return [StepPart(why, why)]
    change = "" if last_reward is None else f" ({metrics['reward'] - last_reward:+.3f})"
    right = [StepPart("right", f"right {metrics['right']:.0%}")] if "right" in metrics else []
    return [StepPart("reward", f"reward {metrics['reward']:.3f}{change}"), *right]


def _faults(metrics: Mapping[str, float]) -> list[StepPart]:
    """Return what went wrong in the step."""
    parts: list[StepPart] = []
    if metrics.get("updates/refused"):
        parts.append(StepPart("update refused", "update refused: not finite"))
    failures = sum(value for name, value in metrics.items() if name.startswith("reward_status/"))
    if failures:
        parts.append(StepPart("without a reward", f"{failures:.0f} without a reward"))
    if metrics.get("num_without_verdict"):
        parts.append(StepPart("without a verdict", f"{metrics['num_without_verdict']:.0f} without a verdict"))
    if metrics["completions/clipped_ratio"]:
        parts.append(StepPart("truncated", f"truncated {metrics['completions/clipped_ratio']:.0%}"))
    return parts


def _signal(metrics: Mapping[str, float]) -> list[StepPart]:
    """Return in how many groups rewards differ, and how many have an advantage if these are not the same number."""
    if "reward" not in metrics:
        return []
    differ, taught = 1 - metrics["frac_reward_zero_std"], 1 - metrics["frac_zero_advantage"]
    same = math.isclose(differ, taught, abs_tol=0.005)
    parts = [StepPart("rewards differ", f"rewards differ {differ:.0%}")]
    return parts if same else [*parts, StepPart("with an advantage", f"with an advantage {taught:.0%}")]


def _sampling(metrics: Mapping[str, float], rounding: float) -> list[StepPart]:
    """Return how far sampler and trainer are apart, and what the correction made of it."""
    parts: list[StepPart] = []
    mismatch = metrics.get("sampling/sampling_logp_difference/max", 0.0)
    if mismatch > rounding:
        parts.append(StepPart("sampler and trainer differ", f"sampler and trainer differ by {mismatch:.2g} nats"))
    if "sampling/corrected" in metrics:
        corrected = metrics["sampling/corrected"] * metrics["num_trained_tokens"]
        parts.append(StepPart("corrected", f"corrected {counted(round(corrected), 'token')}"))
    return parts
