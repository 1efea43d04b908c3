"""Run TRL 1.16's own trainers and outdo on the same made-up numbers.

TRL computes everything from rewards to a loss with its own code: advantages, engine weights, masks, denominators. Only
what needs a model is replaced: the sampling, and every log-probability and entropy. TRL receives each row as a
completion from its first column on; tokens that are not trained are marked as written by a tool.

The precision is torch's default dtype: TRL creates some tensors in it (SAPO's temperatures, rewards, log-probabilities
of the engine), so it computes entirely in float64 only if that is the default.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from toys import batch_of, rollout

from outdo.algorithms.advantages import Advantage, group_standardised, per_token
from outdo.algorithms.objectives import presets, surrogates
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.compat import CONVENTIONS, compat
from outdo.algorithms.objectives.corrections import mask, none, truncate
from outdo.algorithms.objectives.ratios import sequence, token
from outdo.algorithms.shapes import Correction
from outdo.testing import tiny_model
from outdo.types import Batch, Rollout, TokenScores

Groups = Sequence[Sequence[Rollout]]
GROUPS: Groups = [
    [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(0, 0.0)],
    [rollout(2, 1.0), rollout(5, 1.0), rollout(3, 1.0), rollout(1, 1.0)],  # equal rewards
    [rollout(2, 0.0), rollout(3, 1.0), rollout(6, 0.0, mask=(True, True, False, False, True, True)), rollout(2, 1.0)],
]
SIZE = len(GROUPS[0])
LONGEST = 6
EPS = CONVENTIONS["trl"].advantage["eps"]
STANDARDISED = per_token(lambda rewards, group: group_standardised(rewards, group, eps=EPS))

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-7}, torch.float64: {"rtol": 1e-9, "atol": 1e-12}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A batch with rewards and log-probabilities, plus the log πθ and entropies H that a model would compute."""

    batch: Batch
    logprobs: Tensor  # [B, T]
    entropy: Tensor  # [B, T]


Outcome = tuple[Tensor, Tensor, Tensor]
"""The loss and its gradients by log πθ [B, T] and by H [B, T]."""


def made_up(groups: Groups = GROUPS, *, seed: int = 46, extreme: float = 0.0, reference: float | None = None) -> Case:
    """Return a case in torch's default precision, with log-probabilities close to each other except for some tokens.

    `extreme` is the distance in nats of πθ from π_old at some tokens, and of π_old from the engine at others;
    `reference` is that of πθ from π_ref. Its default is `extreme`, but at most 4 in float32: the gradient of ρ k3 is ρ
    d, which TRL and outdo both compute as a difference of numbers of the size of ρ e^-d. The seed reaches every branch.
    """
    random = torch.Generator().manual_seed(seed)
    batch = batch_of(*groups)
    shape, dtype = batch.token_ids.shape, torch.get_default_dtype()

    def normal() -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    def apart(scale: float, extreme: float = extreme) -> Tensor:
        return scale * normal() + extreme * (normal() > 1) * normal().sign()

    from_reference = (extreme if dtype == torch.float64 else min(extreme, 4.0)) if reference is None else reference
    old = -normal().abs()
    now = old + apart(0.4)
    given = {
        "old_logprobs": old,
        "ref_logprobs": now + apart(0.5, from_reference),
        "rollout_logprobs": old + apart(0.5),
    }
    exact = {name: value.to(dtype) for name, value in given.items()}
    return Case(
        batch=batch.with_(rewards=batch.rewards.to(dtype), **exact),
        logprobs=now.to(dtype),
        entropy=normal().abs().to(dtype),
    )


def without_masks(case: Case) -> Case:
    """Return the case with log-probabilities of 0 outside `loss_mask`, for a trainer that has no masks."""
    names = ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    cut = {name: getattr(case.batch, name).where(case.batch.loss_mask, 0.0) for name in names}
    return replace(case, batch=case.batch.with_(**cut), logprobs=case.logprobs.where(case.batch.loss_mask, 0.0))


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype within the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# ---------------------------------------------------------------------------------------------------------------- TRL


def trainer_of(trainer: type, config: type, folder: Path) -> Any:
    """Create a trainer on a tiny model. This is slow, so `trl` sets the options of each test on the same trainer."""
    from datasets import Dataset

    tiny_model(folder / "model", hidden=16, layers=1)
    made = trainer(
        model=str(folder / "model"),
        reward_funcs=lambda **_: [],
        args=config(
            output_dir=str(folder / "run"),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=SIZE * len(GROUPS),
            num_generations=SIZE,
            max_completion_length=LONGEST,
            num_iterations=2,  # so that π_old is measured
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b", "c"]}),
    )
    made.current_gradient_accumulation_steps = 1  # this and the next line are what its `train` does
    made.model.train()
    made.ref_model = object()  # TRL creates it only if β is not 0; it is never called
    return made


@contextmanager
def trainer_options(trainer: Any, **options: Any) -> Iterator[None]:
    """Set these options on the trainer within the context, under their attribute names."""
    on_trainer = {name: value for name, value in options.items() if hasattr(trainer, name)}
    on_args = {name: value for name, value in options.items() if hasattr(trainer.args, name)}
    assert on_trainer.keys() | on_args.keys() == options.keys(), "TRL has no such option"
    with patch.multiple(trainer, **on_trainer), patch.multiple(trainer.args, **on_args):
        yield


def inputs_of(trainer: Any, case: Case, *, rewards: Sequence[Sequence[float | None]] = (), engine: bool = True) -> Any:
    """Return TRL's inputs of the first pass: advantages, masks, weights and denominators.

    `rewards` are those of several reward functions, by default the batch's own; without `engine`, TRL receives no
    log-probabilities of the engine.
    """
    from trl import RLOOTrainer

    batch = case.batch
    lengths = batch.attention_mask.sum(1).tolist()
    texts = ["?"] * len(batch)

    def listed(values: Tensor) -> list[list[Any]]:
        return [row[:length].tolist() for row, length in zip(values, lengths, strict=True)]

    def generate(_: object) -> tuple[Any, ...]:
        prompts, completions = [[1] for _ in texts], listed(batch.token_ids)
        if isinstance(trainer, RLOOTrainer):
            return prompts, completions, texts
        sampled = listed(batch.rollout_logprobs) if engine else None
        return prompts, completions, listed(batch.loss_mask.long()), texts, sampled, {}, None, None

    def measured(model: object, *_: object, **__: object) -> tuple[Tensor | None, None, None]:
        return batch.ref_logprobs if model is trainer.ref_model else batch.old_logprobs, None, None

    parts = rewards or [batch.rewards.tolist()]
    functions = [lambda part=part, **_: part for part in parts]
    with patch.multiple(
        trainer,
        _generate=generate,
        _get_per_token_logps_and_entropies=measured,
        reward_funcs=functions,
        reward_func_names=[str(n) for n in range(len(parts))],
        reward_processing_classes=[None] * len(parts),
    ):
        return trainer._generate_and_score_completions([{"prompt": text} for text in texts])


def loss_of(trainer: Any, case: Case, inputs: Any) -> Outcome:
    """Return TRL's loss of one pass and its gradients."""
    leaf, entropy = case.logprobs.clone().requires_grad_(), case.entropy.clone().requires_grad_()
    with patch.object(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (leaf, entropy, None)):
        loss = trainer.compute_loss(trainer.model, inputs)
    by_logprobs, by_entropy = torch.autograd.grad(loss, (leaf, entropy), allow_unused=True, materialize_grads=True)
    return loss.detach(), by_logprobs, by_entropy


def trl(trainer: Any, case: Case, *, engine: bool = True, **options: Any) -> Outcome:
    """Compute loss and gradients from rewards with TRL."""
    with trainer_options(trainer, **options):
        return loss_of(trainer, case, inputs_of(trainer, case, engine=engine))


# -------------------------------------------------------------------------------------------------------------- outdo


def outdo(objective: ComposedObjective, case: Case, advantage: Advantage = STANDARDISED) -> Outcome:
    """Compute loss and gradients from rewards with outdo."""
    batch = objective.prepare(advantage(case.batch.with_(old_sums={"entropy": case.entropy})))
    leaf, entropy = case.logprobs.clone().requires_grad_(), case.entropy.clone().requires_grad_()
    loss = objective(TokenScores(logprobs=leaf, sums={"entropy": entropy}), batch).loss
    by_logprobs, by_entropy = torch.autograd.grad(loss, (leaf, entropy), allow_unused=True, materialize_grads=True)
    return loss.detach(), by_logprobs, by_entropy


def assert_same(actual: Outcome, expected: Outcome) -> None:
    """Assert equality of every element within 1e-5 in float32 and 1e-9 in float64."""
    dtype = actual[0].dtype
    assert dtype == torch.get_default_dtype()
    for ours, theirs in zip(actual, expected, strict=True):
        assert theirs.isfinite().all()
        torch.testing.assert_close(ours, theirs, **TOLERANCES[dtype])


@dataclass(frozen=True, slots=True)
class Kind:
    """A `loss_type` of TRL, with outdo's preset for it and TRL's own bounds."""

    loss_type: str
    objective: ComposedObjective
    low: float = 0.2
    high: float = 0.2

    def options(self, **options: Any) -> dict[str, Any]:
        """Return TRL's options for it."""
        return {"loss_type": self.loss_type, "epsilon_low": self.low, "epsilon_high": self.high, **options}

    def like_trl(
        self, *, level: str = "token", kl_ratio: bool = True, engine: Correction = none, **more: Any
    ) -> ComposedObjective:
        """Return outdo's objective for it with some pieces replaced; `engine` is the engine weight."""
        changes: dict[str, Any] = {"level": LEVELS[level], "correction": engine, **more}
        if self.loss_type == "vespo":  # TRL's engine weight is a part of W, not a factor
            changes |= {"surrogate": surrogates.vespo(engine=engine), "correction": more.get("correction", none)}
        objective = compat("trl", replace(self.objective, **changes))
        return objective if kl_ratio else replace(objective, kl_ratio=False)


LEVELS = {"token": token, "sequence": sequence}
KINDS = (
    Kind("grpo", presets.grpo(beta=0.0)),
    Kind("bnpo", presets.bnpo()),
    Kind("dr_grpo", presets.dr_grpo(length=LONGEST)),
    Kind("dapo", presets.dapo(), high=0.28),
    Kind("luspo", presets.luspo(), low=2e-3, high=2.5e-3),
    Kind("cispo", presets.cispo(ratio_max=5.0), high=5.0),
    Kind("sapo", presets.sapo()),
    Kind("vespo", presets.vespo()),
)


def engine_options(mode: str, low: float | None = None, high: float | None = 3.0) -> dict[str, Any]:
    """Return TRL's options for an engine weight."""
    return {
        "use_vllm": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": low,
        "vllm_importance_sampling_clip_max": high,
    }


def engine_weight(mode: str, low: float | None = None, high: float | None = 3.0) -> Correction:
    """Return outdo's correction for the same engine weight."""
    level, _, what = mode.partition("_")
    bounds = {"low": 0.0 if low is None else low, "high": math.inf if high is None else high}
    return {"truncate": truncate, "mask": mask}[what](level=level, **bounds)
