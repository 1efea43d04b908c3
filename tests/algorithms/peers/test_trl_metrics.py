"""Test that the metrics that have TRL's names have the values that TRL's own trainer logs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from toys import rollout
from trl_cases import GROUPS, STANDARDISED, Case, inputs_of, made_up, trainer_options, trl

from outdo.algorithms.objectives import corrections, presets
from outdo.algorithms.objectives.base import ComposedObjective, clipped_tokens
from outdo.algorithms.objectives.compat import compat
from outdo.run.metrics.metrics import step_metrics
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step, TokenScores, Update

pytestmark = pytest.mark.usefixtures("in_float64")
NAMES = ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")


def ours(objective: ComposedObjective, case: Case) -> dict[str, float]:
    """Return the metrics of a step whose last pass measured the case's log πθ."""
    batch = objective.prepare(STANDARDISED(case.batch))
    scores = TokenScores(logprobs=case.logprobs.clone().requires_grad_(), sums={"entropy": case.entropy})
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


def of_groups(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """Return the metrics of a step before its first pass; each prompt is one token long."""
    prompts = [Prompt(id=str(number), text="?", token_ids=(1,)) for number in range(len(groups))]
    made = [Group(prompt=prompt, rollouts=tuple(each)) for prompt, each in zip(prompts, groups, strict=True)]
    return step_metrics(Step(index=1, sampled=Sampled(groups=made), batch=Batch.from_groups(made), updates=[]))


def test_rewards_are_summarised_as_trl_logs_them(grpo_trainer: Any) -> None:
    """One answer has no reward, and one part of another has none; the groups have equal, different and no rewards."""
    without = {"reward": 0.0, "status": "failed", "reward_parts": {"0": None, "1": None}}
    parts = [[(each.reward, 0.0) for each in group] for group in GROUPS]
    parts[2][1] = (1.0, None)
    groups = [
        [
            replace(each, reward_parts=dict(zip("01", of_answer, strict=True)))
            for each, of_answer in zip(*pair, strict=True)
        ]
        for pair in zip(GROUPS, parts, strict=True)
    ]
    groups[0][1] = replace(groups[0][1], **without)
    rewards = [[each.reward_parts[name] for group in groups for each in group] for name in "01"]
    grpo_trainer._metrics["train"].clear()
    with trainer_options(grpo_trainer, reward_weights=torch.ones(2)):
        inputs_of(grpo_trainer, made_up(), rewards=rewards)
    found = of_groups(groups)
    for name in ("reward", "reward_std", "frac_reward_zero_std", "rewards/0/mean", "rewards/1/mean"):
        assert found[name] == pytest.approx(grpo_trainer._metrics["train"][name][-1]), name
    assert found["reward_std"] != pytest.approx(found["reward_group_std"])


def test_lengths_and_tokens_are_those_that_trl_logs(grpo_trainer: Any) -> None:
    """Of answers with the tokens of an environment; TRL's number of tokens adds up, with the prompts of one token."""
    ends = grpo_trainer.eos_token_ids[0]
    masks = [(True,) * 3, (True, False, False, True), (True,), (True, True, False, False, False, True)]
    answers = [rollout(len(mask), 1.0, mask=mask, token_ids=(*range(10, 9 + len(mask)), ends)) for mask in masks]
    answers[2] = replace(answers[2], token_ids=(10,), finish_reason=FinishReason.length)
    sampled = {"prompt_ids": [[1]] * 4, "completion_ids": [list(each.token_ids) for each in answers], "logprobs": None}
    sampled["env_mask"] = [[int(each) for each in mask] for mask in masks]
    grpo_trainer._metrics["train"].clear()
    before = grpo_trainer.state.num_input_tokens_seen
    with patch.object(grpo_trainer, "rollout_func", lambda prompts, trainer: sampled):
        grpo_trainer._generate(["?"] * 4)
    logged, found = grpo_trainer._metrics["train"], of_groups([answers])
    for name in ("mean_length", "min_length", "max_length", "clipped_ratio"):
        assert found[f"completions/{name}"] == pytest.approx(logged[f"completions/{name}"][-1]), name
    assert found["num_tokens"] == logged["num_tokens"][-1] - before - 4
