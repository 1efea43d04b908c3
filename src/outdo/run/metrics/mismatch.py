"""Metrics of how far engine and trainer are apart, and of what a correction makes of it."""

import math

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.types import Step

FAR = 0.1
"""Nats beyond which a token counts as far apart."""
TOUCHED = 0.01
"""How far from 1 the factor of a correction is at a token that the correction changes noticeably."""


def mismatch_metrics(engine: Tensor, trainer: Tensor) -> dict[str, float]:
    """Compare log-probabilities of the same trained tokens [n], by the engine that sampled them and by the trainer.

    The effective sample size is (Σw)² / (n Σw²) of the weights w = π_old / π_rollout: the share of the tokens that
    would tell as much if they came from the policy itself.

    Tokens with NaN, whose log-probability is not known, are left out; empty if it is not known for any token.
    """
    log_w = (trainer - engine).double()
    log_w = log_w[~log_w.isnan()]
    if not len(log_w):
        return {}
    gap, weight = log_w.abs(), log_w.exp()
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
        "sampling/sampling_logp_difference/p99": float(gap.kthvalue(math.ceil(0.99 * len(gap))).values),
        "sampling/sampling_logp_difference/far": float((gap > FAR).double().mean()),
        "sampling/effective_sample_size": float(weight.sum() ** 2 / (len(weight) * weight.square().sum())),
    }


@torch.no_grad()
def correction_metrics(step: Step, objective: Objective) -> dict[str, float]:
    """Return the share of the trained tokens whose loss the correction changes by more than 1 %; empty without one.

    With `bypass` it is the correction of the loss in the last pass, which compares πθ with π_rollout.
    """
    update, batch = step.update, step.batch
    if not isinstance(objective, ComposedObjective) or objective.correction is None or not (update and update.tokens):
        return {}
    logprobs = update.tokens["logprobs"]
    if objective.bypass:
        batch = batch.with_(old_logprobs=logprobs)
    factor = torch.as_tensor(objective.correction(logprobs, batch))
    changed = (factor - 1.0).abs().expand_as(batch.loss_mask)[batch.loss_mask] > TOUCHED
    return {"sampling/corrected": float(changed.double().mean())}
