"""Test that the metrics that have TRL's names have the values that TRL's own trainer logs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from trl_cases import STANDARDISED, Case, made_up, trl

from outdo.algorithms.objectives import corrections, presets
from outdo.algorithms.objectives.base import ComposedObjective, clipped_tokens
from outdo.algorithms.objectives.compat import compat
from outdo.run.metrics.metrics import step_metrics
from outdo.types import Sampled, Step, TokenScores, Update

pytestmark = pytest.mark.usefixtures("in_float64")
NAMES = ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")


def ours(objective: ComposedObjective, case: Case) -> dict[str, float]:
    """Return the metrics of a step whose last pass measured the case's log πθ."""
    batch = objective.prepare(STANDARDISED(case.batch))
    scores = TokenScores(logprobs=case.logprobs.clone().requires_grad_(), entropy=case.entropy)
    (push,) = torch.autograd.grad(objective(scores, batch).policy, scores.logprobs)
    tokens = {
        "logprobs": case.logprobs,
        "log_ratio": (case.logprobs - batch.old_logprobs).where(batch.loss_mask, 0.0),
        "entropy": case.entropy,
        "clipped": clipped_tokens(objective, scores, batch, push),
    }
    step = Step(index=1, sampled=Sampled(groups=[]), batch=batch, updates=[Update(metrics={}, tokens=tokens)])
    return {name: value for name, value in step_metrics(step).items() if name in NAMES}


@pytest.mark.parametrize("mode", [None, "token_mask", "sequence_mask"])
def test_kl_and_clip_ratios_are_those_that_trl_logs(grpo_trainer: Any, mode: str | None) -> None:
    """Also where TRL's weights for the engine drop tokens or answers: a dropped token is not a clipped one."""
    level = {"token_mask": "token", "sequence_mask": "sequence"}
    correction = corrections.mask(level=level[mode], low=0.0, high=1.5) if mode else None
    case = made_up()
    engine = {"vllm_importance_sampling_correction": mode is not None, "use_vllm": mode is not None}
    engine |= {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.5} if mode else {}
    grpo_trainer._metrics["train"].clear()
    trl(grpo_trainer, case, loss_type="grpo", beta=0.04, **engine)
    logged = {name: grpo_trainer._metrics["train"][name][-1] for name in NAMES}
    objective = replace(compat("trl", presets.grpo()), correction=correction)
    found = ours(objective, case)
    assert logged["clip_ratio/region_mean"] > 0
    assert found == pytest.approx(logged, rel=1e-5)
    uncorrected = ours(replace(objective, correction=None), case)
    assert found == uncorrected
