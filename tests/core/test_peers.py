"""The same numbers as TRL 1.16, run live: its advantages, its loss, and its gradient by every log-probability.

Meant to be different, and so not compared: TRL's default `loss_type` is "dapo"; unless `use_bias_correction_kl` is
switched off, it multiplies k3 by the ratio (DeepSeek-V3.2), which DeepSeekMath does not; its eps is 1e-4; and it lets
log-ratios grow without limit, where outdo keeps them within ±20. Its "grpo" also divides by the answers without a
trained token; a test says so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from toys import batch_of, evaluate, rollout, with_noise
from trl import GRPOConfig, GRPOTrainer

from outdo.advantages import RewardAdvantage, group_centred, group_standardised, per_token
from outdo.objectives.objective import Formula
from outdo.objectives.presets import grpo
from outdo.objectives.surrogates import clip
from outdo.objectives.weights import constant, token_mean
from outdo.testing import tiny_model
from outdo.types import Batch

# TRL says "gradient checkpointing" where transformers has come to say "activation checkpointing".
pytestmark = pytest.mark.filterwarnings(r"ignore:`(is_)?gradient_checkpointing` is deprecated:FutureWarning")

GROUPS = [
    [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(2, 0.0)],
    [rollout(2, 1.0), rollout(5, 1.0), rollout(3, 1.0), rollout(1, 1.0)],  # no deviation
    [rollout(2, 0.0), rollout(3, 1.0), rollout(6, 0.0), rollout(2, 0.0)],
]
SIZE = len(GROUPS[0])
LONGEST = 6
REWARDS = [answer.reward for group in GROUPS for answer in group]


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GRPOTrainer]:
    """TRL's own trainer, on a tiny model, with the options given."""
    folder: Path = tmp_path_factory.mktemp("trl")
    tiny_model(folder / "model", hidden=16, layers=1)
    prompts = Dataset.from_dict({"prompt": ["a", "b", "c"]})

    def make(**options: Any) -> GRPOTrainer:
        config = GRPOConfig(
            output_dir=str(folder / "run"),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=len(REWARDS),
            num_generations=SIZE,
            max_completion_length=LONGEST,
            use_bias_correction_kl=False,
            **options,
        )
        trainer = GRPOTrainer(
            model=str(folder / "model"),
            reward_funcs=lambda completions, **_: REWARDS,
            args=config,
            train_dataset=prompts,
        )
        trainer.current_gradient_accumulation_steps = 1  # this and the next line are what its `train` does
        trainer.model.train()
        return trainer

    return make


def trl_loss(trainer: GRPOTrainer, logprobs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """TRL's loss of made-up log-probabilities, and its gradient by them; the whole row passes as the completion."""
    leaf = logprobs.detach().clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, torch.zeros_like(leaf), None)
    assert batch.advantages is not None
    nothing = batch.token_ids[:, :0]
    inputs = {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": batch.token_ids,
        "completion_mask": batch.loss_mask.long(),
        "advantages": batch.advantages.amax(1) + batch.advantages.amin(1),  # of a row: 0 and its advantage
        "old_per_token_logps": batch.old_logprobs,
        "ref_per_token_logps": batch.ref_logprobs,
        "num_items_in_batch": batch.loss_mask.sum(),
    }
    loss = trainer.compute_loss(trainer.model, inputs)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def noisy_batch(seed: int) -> tuple[Batch, Tensor]:
    """A ragged float32 batch with a group of equal rewards, and log πθ [B, T]."""
    batch, logprobs = with_noise(batch_of(*GROUPS), seed)
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    assert batch.advantages is not None
    assert batch.advantages[SIZE : 2 * SIZE].eq(0).all()
    floats = {name: getattr(batch, name).float() for name in ("old_logprobs", "ref_logprobs", "advantages")}
    return batch.with_(**floats), logprobs.float()


CASES: dict[str, tuple[dict[str, Any], Formula]] = {
    "without a reference": ({"loss_type": "grpo", "beta": 0.0}, grpo(beta=0.0)),
    "with a reference": ({"loss_type": "grpo", "beta": 0.04}, grpo(beta=0.04)),
    "clipped unevenly": (
        {"loss_type": "grpo", "beta": 0.5, "epsilon": 0.1, "epsilon_high": 0.4},
        grpo(clip_low=0.1, clip_high=0.4, beta=0.5),
    ),
    "every token the same": (
        {"loss_type": "bnpo", "beta": 0.0},
        Formula(surrogate=clip(low=0.2, high=0.2), weight=token_mean),
    ),
    "constant length": (
        {"loss_type": "dr_grpo", "beta": 0.0},
        Formula(surrogate=clip(low=0.2, high=0.2), weight=constant(LONGEST)),
    ),
}


@pytest.mark.parametrize(("options", "objective"), CASES.values(), ids=CASES)
def test_loss_and_gradient_are_those_of_trl(
    trl: Callable[..., GRPOTrainer], options: dict[str, Any], objective: Formula
) -> None:
    trainer = trl(**options)
    for seed in range(3):
        batch, logprobs = noisy_batch(seed)
        expected_loss, expected_gradient = trl_loss(trainer, logprobs, batch)
        loss, gradient = evaluate(objective, logprobs, batch)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
        clipped = (gradient == 0) & batch.loss_mask & (batch.advantages != 0)
        assert clipped.any() or objective.beta > 0  # the comparison reaches both sides of the clip


def test_the_first_pass_is_that_of_trl(trl: Callable[..., GRPOTrainer]) -> None:
    trainer = trl(loss_type="grpo", beta=0.04)
    batch, logprobs = noisy_batch(0)
    first = batch.with_(old_logprobs=None)
    torch.testing.assert_close(
        evaluate(grpo(), logprobs, first), trl_loss(trainer, logprobs, first), rtol=1e-5, atol=1e-7
    )


def test_trl_divides_by_answers_without_a_trained_token_and_outdo_does_not(trl: Callable[..., GRPOTrainer]) -> None:
    batch, logprobs = noisy_batch(0)
    mask = batch.loss_mask.clone()
    mask[0] = False
    batch = batch.with_(loss_mask=mask).minibatches(1)[0]
    _, theirs = trl_loss(trl(loss_type="grpo", beta=0.0), logprobs, batch)
    _, ours = evaluate(grpo(beta=0.0), logprobs, batch)
    assert batch.totals.sequences == len(batch) - 1
    torch.testing.assert_close(ours * batch.totals.sequences, theirs * len(batch), rtol=1e-5, atol=1e-7)


def trl_advantages(trainer: GRPOTrainer, batch: Batch, rewards: list[float | None]) -> Tensor:
    """What TRL makes of `rewards`, by all of its own code but the sampling."""
    completions = [row[mask].tolist() for row, mask in zip(batch.token_ids, batch.loss_mask, strict=True)]
    texts = ["?"] * len(completions)
    trainer._generate = lambda _: ([[1] for _ in texts], completions, None, texts, None, {}, None, None)
    trainer.reward_funcs = [lambda completions, **_: rewards]
    inputs = [{"prompt": text} for text in texts]
    return trainer._generate_and_score_completions(inputs)["advantages"]


ADVANTAGES: list[tuple[str, RewardAdvantage]] = [
    ("group", lambda rewards, group: group_standardised(rewards, group, eps=1e-4)),
    ("none", group_centred),
]


@pytest.mark.parametrize(("scale", "advantage"), ADVANTAGES, ids=[scale for scale, _ in ADVANTAGES])
def test_advantages_are_those_of_trl(trl: Callable[..., GRPOTrainer], scale: str, advantage: RewardAdvantage) -> None:
    batch = batch_of(*GROUPS)
    expected = trl_advantages(trl(scale_rewards=scale), batch, [*REWARDS])
    torch.testing.assert_close(advantage(batch.rewards, batch.group), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("scale", "advantage"), ADVANTAGES, ids=[scale for scale, _ in ADVANTAGES])
def test_an_answer_without_a_reward_counts_as_little_as_with_trl(
    trl: Callable[..., GRPOTrainer], scale: str, advantage: RewardAdvantage
) -> None:
    batch = batch_of(*GROUPS)
    missing = [1, 6]
    expected = trl_advantages(
        trl(scale_rewards=scale), batch, [None if row in missing else reward for row, reward in enumerate(REWARDS)]
    )
    scored = torch.tensor([row not in missing for row in range(len(batch))])
    filled = per_token(advantage)(batch.with_(scored=scored)).advantages
    assert filled is not None
    ours = filled.amax(1) + filled.amin(1)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
