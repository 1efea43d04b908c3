"""Compute the metrics of a training step. Names are those of TRL if TRL has the metric.

Each has an entry in `extras/page/glossary.toml`. What a `Step` does not know is added in `outdo.run.training`.

`kl` is TRL's with its default `use_bias_correction_kl`, `clip_ratio/*` are those of its losses by token. With the ratio
of a whole answer TRL takes that ratio in `kl`, and counts answers in `clip_ratio/*`, where outdo counts tokens; it does
not count what its `delta` clips. TRL's `num_tokens` adds up over the run, with the prompts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outdo.algorithms.advantages.signal import rewards_differ, signal_of
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.progress import target_metrics
from outdo.run.metrics.across_questions import across_question_metrics
from outdo.run.metrics.mismatch import mismatch_metrics
from outdo.run.metrics.teachers import teacher_metrics
from outdo.run.metrics.within_groups import within_group_metrics
from outdo.types import Batch, FinishReason, Group, Rollout, Step


def step_metrics(step: Step) -> dict[str, float]:
    """Return all metrics that need no further computation of the model. Metrics without data are left out."""
    answered = _by_policy(step)
    metrics = (
        _reward_metrics(answered)
        | _completion_metrics(answered)
        | _episode_metrics(answered)
        | _token_metrics(step)
        | _update_metrics(step)
    )
    metrics |= within_group_metrics(answered.groups) | across_question_metrics(answered.groups)
    return {name: value for name, value in metrics.items() if value is not None} | {**step.sampled.metrics}


def _by_policy(step: Step) -> Step:
    """Return the step without the answers of the data, which say nothing of the policy's own."""
    if not any(group.demonstrated for group in step.groups):
        return step
    sampled = [not group.demonstrated for group in step.groups for _ in group.rollouts]
    groups = [group for group in step.groups if not group.demonstrated]
    rows = torch.tensor(sampled).nonzero().squeeze(1)
    batch = step.batch.rows(rows) if groups else Batch.from_groups(())
    return replace(step, sampled=replace(step.sampled, groups=groups), batch=batch)


def _reward_metrics(step: Step) -> dict[str, float | None]:
    """Return the metrics over scored rollouts, and the number of unscored ones by status."""
    batch = step.batch
    rewards = batch.rewards[batch.scored]
    _, sizes = batch.group[batch.scored].unique_consecutive(return_counts=True)
    spreads = rewards.split(sizes.tolist())  # of each group with scored rollouts
    metrics: dict[str, float | None] = {"reward": _mean(rewards)} | _right_metrics(step.groups)
    metrics |= {"num_scored": float(len(rewards))}
    if spreads:
        metrics |= {
            "num_groups": float(len(spreads)),
            "reward_std": _standard_deviation(rewards),
            "reward_group_std": sum(map(_standard_deviation, spreads)) / len(spreads),
            "frac_reward_zero_std": sum(not rewards_differ(spread) for spread in spreads) / len(spreads),
        }
        if batch.advantages is not None:
            metrics["frac_zero_advantage"] = 1.0 - float(signal_of(batch).sum()) / len(spreads)
    if batch.baselines is not None:
        metrics["baseline"] = _mean(batch.baselines[batch.scored])
    for name, part in batch.reward_parts.items():
        metrics[f"rewards/{name}/mean"] = _mean(part[~part.isnan()])
    statuses = Counter(rollout.status for group in step.groups for rollout in group.rollouts)
    return metrics | {f"reward_status/{status}": float(count) for status, count in statuses.items() if status != "ok"}


def _standard_deviation(rewards: Tensor) -> float:
    return float(rewards.std()) if len(rewards) > 1 else 0.0


def _right_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of right answers, and of groups with only right or only wrong ones; empty without verdicts.

    Only answers with a reward and a verdict count, and groups with one of them. An answer may have a verdict and no
    reward, as where `remax` has no baseline.
    """
    scored = [[rollout.right for rollout in group.rollouts if rollout.scored] for group in groups]
    verdicts = [judged for group in scored if (judged := [right for right in group if right is not None])]
    if not verdicts:
        return {}
    answers = [right for group in verdicts for right in group]
    missing = sum(map(len, scored)) - len(answers)
    return {
        **({"num_without_verdict": float(missing)} if missing else {}),
        "right": sum(answers) / len(answers),
        "frac_all_right": sum(map(all, verdicts)) / len(verdicts),
        "frac_all_wrong": sum(not any(group) for group in verdicts) / len(verdicts),
    }


def _completion_metrics(step: Step) -> dict[str, float | None]:
    rollouts = [rollout for group in step.groups for rollout in group.rollouts]
    lengths = [rollout.sampled_tokens for rollout in rollouts]
    of_environments = sum(len(rollout.token_ids) for rollout in rollouts) - sum(lengths)
    cut = sum(rollout.truncated for rollout in rollouts)
    return {
        "completions/mean_length": sum(lengths) / max(1, len(lengths)),
        "completions/min_length": float(min(lengths, default=0)),
        "completions/max_length": float(max(lengths, default=0)),
        "completions/clipped_ratio": cut / max(1, len(rollouts)),
        "num_completions": float(len(lengths)),
        "num_tokens": float(sum(lengths)),
        "num_environment_tokens": float(of_environments) if of_environments else None,
    }


def _episode_metrics(step: Step) -> dict[str, float | None]:
    """Return the number of turns, the sum of each count, and what follows from these; empty for single answers."""
    rollouts = [rollout for group in step.groups for rollout in group.rollouts]
    counts: Counter[str] = Counter()
    for rollout in rollouts:
        counts.update(rollout.counts)  # keeps a count of 0
    metrics: dict[str, float | None] = {name: float(count) for name, count in counts.items()}
    metrics |= _turn_metrics(step.batch, rollouts)
    sampled = sum(rollout.sampled_tokens for rollout in rollouts)
    if "engine/tokens_read" in counts:
        metrics["engine/tokens_read_per_sampled"] = counts["engine/tokens_read"] / sampled if sampled else None
    calls = [rollout.counts["tools/calls"] for rollout in rollouts if "tools/calls" in rollout.counts]
    metrics |= _tool_metrics(counts, calls) | _metrics_of_each_tool(rollouts)
    return metrics | _environment_metrics(rollouts, counts)


def _turn_metrics(batch: Batch, rollouts: Sequence[Rollout]) -> dict[str, float | None]:
    """Return the number of turns, and how many episodes ended at a limit of them; empty for single answers."""
    turns = batch.turn.amax(1) + 1 if len(batch) else batch.turn[:, 0]
    at_limit = sum(rollout.finish_reason is FinishReason.turns for rollout in rollouts)
    if not at_limit and not (turns > 1).any():
        return {}
    return {"completions/mean_turns": _mean(turns), "completions/turns_ratio": at_limit / max(1, len(rollouts))}


def _environment_metrics(rollouts: Sequence[Rollout], counts: Mapping[str, int]) -> dict[str, float | None]:
    """Return the mean reward of each environment that rows name; empty without such."""
    means: dict[str, float | None] = {}
    for name in counts:
        if name.startswith("environments/"):
            rewards = [rollout.reward for rollout in rollouts if name in rollout.counts and rollout.scored]
            means[f"{name}/reward"] = sum(rewards) / len(rewards) if rewards else None
    return means


def _tool_metrics(counts: Mapping[str, int], calls: Sequence[int]) -> dict[str, float | None]:
    """Return what the calls of the episodes say together; empty without tools."""
    if "tools/calls" not in counts:
        return {}
    all_calls = counts["tools/calls"]
    failed = sum(counts[f"tools/{kind}"] for kind in ("unknown", "raised", "timed_out"))
    return {
        "tools/fewest_calls": float(min(calls)),
        "tools/most_calls": float(max(calls)),
        "tools/unparsed_ratio": counts["tools/unparsed"] / all_calls if all_calls else None,
        "tools/failed_ratio": failed / all_calls if all_calls else None,
    }


def _metrics_of_each_tool(rollouts: Sequence[Rollout]) -> dict[str, float | None]:
    """Return how often each tool was called, and for how many seconds."""
    metrics: dict[str, float | None] = {}
    for name in sorted({name for rollout in rollouts for name in rollout.tool_seconds}):
        seconds = [duration for rollout in rollouts for duration in rollout.tool_seconds.get(name, ())]
        metrics |= {f"tools/calls/{name}": float(len(seconds)), f"tools/seconds/{name}": sum(seconds)}
    return metrics


def _token_metrics(step: Step) -> dict[str, float | None]:
    """Return the means over trained tokens, all with equal weight, measured during the last pass."""
    batch, update = step.batch, step.update
    if update is None or not update.tokens:  # no token to train on, or only the critic is trained, in its warm-up
        return {}
    mask, tokens = batch.loss_mask, update.tokens
    old = tokens["logprobs"] if batch.old_logprobs is None else batch.old_logprobs
    metrics = {
        "num_trained_tokens": float(mask.sum()),
        "advantage": None if batch.advantages is None else _mean(batch.advantages[mask]),
        "entropy": _mean(tokens["entropy"][mask]),
        **_clip_metrics(batch, tokens),
        **mismatch_metrics(batch.rollout_logprobs[mask], old[mask]),
    }
    if batch.ref_logprobs is not None:
        metrics["kl"] = _mean(k3(tokens["logprobs"], batch.ref_logprobs)[mask] * tokens["log_ratio"][mask].exp())
    if batch.teacher_logprobs is not None:
        metrics |= teacher_metrics(step)
    if batch.targets is not None:
        metrics |= target_metrics(batch, tokens["logprobs"])
    return metrics


def _clip_metrics(batch: Batch, tokens: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Return the shares of the trained tokens that are clipped, by the sign of Â; empty without a ratio.

    A token that is clipped although it moved against its Â counts for itself: that is what a dual clip does.
    """
    if "clipped" not in tokens or batch.advantages is None:
        return {}
    mask = batch.loss_mask
    clipped, wanted = tokens["clipped"][mask], batch.advantages[mask].sign()
    against = clipped & (tokens.get("clip_log_ratio", tokens["log_ratio"])[mask].sign() == -wanted)
    return {
        "clip_ratio/low_mean": _mean(clipped & ~against & (wanted < 0)),
        "clip_ratio/high_mean": _mean(clipped & ~against & (wanted > 0)),
        "clip_ratio/dual_mean": _mean(against) if against.any() else None,
        "clip_ratio/region_mean": _mean(clipped),
    }


def _update_metrics(step: Step) -> dict[str, float | None]:
    """Return the metrics of the last pass; refused and empty optimiser steps are counted over all passes."""
    metrics: dict[str, float | None] = {**(step.update.metrics if step.update else {})}
    for name in ("updates/refused", "updates/empty"):
        metrics[name] = sum(update.metrics.get(name, 0.0) for update in step.updates)
    return metrics | {"passes/done": float(len(step.updates)), f"passes/stopped/{step.stopped}": 1.0}


def _mean(values: Tensor) -> float | None:
    return float(values.float().mean()) if len(values) else None
