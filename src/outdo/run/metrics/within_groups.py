"""Compare the answers of a group with each other: what does the reward follow, and how alike are the answers?

Only differences within a group train the policy, so correlations are taken there: a question that gets long answers and
high rewards is no evidence that the reward follows length.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch

from outdo.algorithms.advantages.signal import rewards_differ
from outdo.types import Group, Rollout


def within_group_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Return the metrics of the answers of a step that compare answers to the same question; None without data:

    completions/empty_ratio      share of the answers without any text; of an episode its last turn counts
    completions/identical_ratio  share of the answers, without the first of each group, that are the same as an earlier
                                 answer of the group: 0 if all differ, 1 if all are the same
    reward_disagreement          share of the texts that several answers of a group have whose rewards differ
    reward_right_correlation     correlation of the reward and whether the answer is right, in the groups in which both
                                 vary: where all are right, or all wrong, the reward may follow what it likes
    reward_length_correlation    the same of the reward and the number of sampled tokens. Right and wrong answers of a
                                 group are then groups of their own: right answers may well be longer than wrong ones
    reward_calls_correlation     the same of the reward and the number of calls of tools
    """
    if not any(group.rollouts for group in groups):
        return {}
    scored = [[rollout for rollout in group.rollouts if rollout.scored] for group in groups]
    return _text_metrics(groups, scored) | {
        "reward_right_correlation": pooled_correlation(
            pairs for pairs in map(_with_verdict, scored) if _both_vary(pairs)
        ),
        "reward_length_correlation": _with_reward(scored, lambda rollout: rollout.sampled_tokens),
        "reward_calls_correlation": _with_reward(scored, lambda rollout: rollout.counts.get("tools/calls", 0)),
    }


def _with_verdict(group: Sequence[Rollout]) -> list[tuple[float, float]]:
    """Return the reward and the verdict of the answers that have both."""
    return [(rollout.reward, float(rollout.right)) for rollout in group if rollout.right is not None]


def _both_vary(pairs: Sequence[tuple[float, float]]) -> bool:
    rewards, verdicts = ([pair[index] for pair in pairs] for index in (0, 1))
    return len(set(verdicts)) > 1 and rewards_differ(torch.tensor(rewards, dtype=torch.float32))


def _with_reward(scored: Sequence[Sequence[Rollout]], value: Callable[[Rollout], int]) -> float | None:
    """Return the correlation of the reward and a value within groups, among equally right answers."""
    return pooled_correlation(
        [(rollout.reward, float(value(rollout))) for rollout in group if rollout.right is verdict]
        for group in scored
        for verdict in (True, False, None)
    )


def _text_metrics(groups: Sequence[Group], scored: Sequence[Sequence[Rollout]]) -> dict[str, float | None]:
    """Return the metrics of empty and of repeated texts."""
    answers = [[whole_answer(rollout) for rollout in group.rollouts] for group in groups if group.rollouts]
    further = sum(len(group) - 1 for group in answers)
    repeats = sum(len(group) - len(set(group)) for group in answers)
    repeated = [same for group in scored for same in _same(group) if len(same) > 1]
    return {
        "completions/empty_ratio": _share(not rollout.text.strip() for group in groups for rollout in group.rollouts),
        "completions/identical_ratio": repeats / further if further else None,
        "reward_disagreement": _share(len({rollout.reward for rollout in same}) > 1 for same in repeated),
    }


def pooled_correlation(groups: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """Return Pearson's correlation of pairs (x, y) around the means of their group; None if x or y never varies there.

    r = Σ (x - x̄)(y - ȳ) / √(Σ (x - x̄)² Σ (y - ȳ)²),   x̄ and ȳ of the pair's group, Σ over all groups
    """
    xy = xx = yy = 0.0
    for group in groups:
        if len(group) < 2:
            continue
        x_mean, y_mean = (math.fsum(values) / len(group) for values in zip(*group, strict=True))
        for x, y in group:
            xy += (x - x_mean) * (y - y_mean)
            xx += (x - x_mean) * (x - x_mean)
            yy += (y - y_mean) * (y - y_mean)
    scale = math.sqrt(xx) * math.sqrt(yy)
    return max(-1.0, min(1.0, xy / scale)) if scale > 0 and math.isfinite(scale) else None


def whole_answer(rollout: Rollout) -> str | tuple[int, ...]:
    """Return what is equal for equal answers: the text, or the tokens of an episode, whose text is its last turn."""
    return rollout.text if all(rollout.loss_mask) else rollout.token_ids


def _same(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    by_answer: defaultdict[str | tuple[int, ...], list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        by_answer[whole_answer(rollout)].append(rollout)
    return list(by_answer.values())


def _share(verdicts: Iterable[bool]) -> float | None:
    known = list(verdicts)
    return sum(known) / len(known) if known else None
