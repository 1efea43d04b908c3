"""Metrics of the teachers of a run: how far they are from the policy, where, and whether they prefer right answers."""

from statistics import fmean

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import TEACHER_DIVERGENCE
from outdo.types import Step

OPENING = 8
"""Tokens of an answer that count as its opening: a few words, in which a style shows before the task does."""


def teacher_metrics(step: Step) -> dict[str, float | None]:
    """Return what the teachers say of the trained tokens that they teach; None without data.

    The step must have trained a policy with teachers. δ = log π_T - log π_old.

        teacher/taught_ratio       share of the trained tokens that have a teacher
        teacher/gap                mean of -δ; of the first `OPENING` tokens of each answer teacher/opening_gap, of the
                                   others teacher/later_gap
        teacher/divergence         mean of D_T in the last pass, if the objective has it
        teacher/right_minus_wrong  see `_right_minus_wrong`
    """
    batch, update = step.batch, step.update
    assert batch.teacher_logprobs is not None
    assert update is not None
    taught = batch.loss_mask & torch.stack([*batch.teacher_weights.values()]).any(0)[:, None]  # [B, T]
    old = update.tokens["logprobs"] if batch.old_logprobs is None else batch.old_logprobs
    gap = old - batch.teacher_logprobs
    opening = taught & (taught.cumsum(1) <= OPENING)
    metrics = {
        "teacher/taught_ratio": float(taught.sum()) / float(batch.loss_mask.sum()),
        "teacher/gap": _mean(gap[taught]),
        "teacher/opening_gap": _mean(gap[opening]),
        "teacher/later_gap": _mean(gap[taught & ~opening]),
        "teacher/right_minus_wrong": _right_minus_wrong(step, -gap.double(), taught),
    }
    if TEACHER_DIVERGENCE in update.tokens:
        metrics["teacher/divergence"] = _mean(update.tokens[TEACHER_DIVERGENCE][taught])
    return metrics


def _right_minus_wrong(step: Step, delta: Tensor, taught: Tensor) -> float | None:
    """Return how much more the teachers like right answers than wrong ones; None without a question that has both.

    An answer has Σ_t (δ_t - δ̄), with δ̄ the mean over the tokens of the question's answers: δ is below 0 on average, so
    that without δ̄ the longer answers would be liked less. Of each question it is the mean over its right answers minus
    that over its wrong ones, and then the mean over the questions. `delta` and `taught` are [B, T].
    """
    differences: list[float] = []
    first = 0
    for group in step.groups:
        rows = slice(first, first + len(group.rollouts))
        first = rows.stop
        of_answers = taught[rows]
        if group.demonstrated or not of_answers.any():
            continue
        centred = (delta[rows] - delta[rows][of_answers].mean()).where(of_answers, 0.0).sum(1).tolist()
        judged = [
            (value, rollout.right)
            for value, rollout, is_taught in zip(centred, group.rollouts, of_answers.any(1).tolist(), strict=True)
            if is_taught
        ]
        right, wrong = ([value for value, verdict in judged if verdict is which] for which in (True, False))
        if right and wrong:
            differences.append(fmean(right) - fmean(wrong))
    return fmean(differences) if differences else None


def _mean(values: Tensor) -> float | None:
    return float(values.float().mean()) if len(values) else None
