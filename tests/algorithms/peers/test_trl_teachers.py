"""The recipe of a trainer of TRL with a teacher has the loss and the gradient of TRL's own function on the same logits.

Loss and gradient are compared by logits, in float64. TRL's loss of the sampled token has another value with the same
gradient: log π times log π - log π_T, where outdo has the ratio π / π_old.
"""

import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trl_cases import GROUPS, LONGEST, SIZE, made_up, precision

from outdo.algorithms.objectives.base import TEACHER_DIVERGENCE, ComposedObjective
from outdo.config.file import load
from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.written import written_recipe
from outdo.run.assemble.method import advantage_of, objective_of
from outdo.types import Batch, TokenScores

WORDS = 11
UNTAUGHT = 2
"""A row without a teacher: in SDPO, one without a right answer in its group."""


@dataclass(frozen=True)
class Case:
    """A batch, and the logits of the policy and its teacher for each of its tokens. [B, T, V]"""

    batch: Batch
    policy: Tensor
    teacher: Tensor


@pytest.fixture
def case() -> Case:
    with precision(torch.float64):
        batch = made_up([[rollout for rollout in group if any(rollout.loss_mask)] for group in GROUPS]).batch
    random = torch.Generator().manual_seed(5)
    shape = (*batch.token_ids.shape, WORDS)
    policy, teacher = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(2))
    return Case(batch.with_(token_ids=batch.token_ids % WORDS), policy, teacher)


def recipe_of(trainer: str, written: dict[str, Any], folder: Path) -> Any:
    needed = {"model_name_or_path": "m", "dataset_name": "x.jsonl", "reward_funcs": ["accuracy_reward"]}
    if trainer == "SDPOTrainer":
        needed |= {"num_generations": SIZE, "per_device_train_batch_size": 3 * SIZE}
    else:
        needed |= {"teacher_model_name_or_path": "t"}
    longest = "max_new_tokens" if trainer == "GKDTrainer" else "max_completion_length"
    conversion = convert_trl(Configuration(written={**needed, longest: LONGEST, **written}, trainer=trainer))
    assert not conversion.mistakes
    path = folder / "recipe.toml"
    path.write_text(written_recipe(conversion, "A configuration of TRL."), encoding="utf-8")
    return load(path)


def chosen(logits: Tensor, batch: Batch, temperature: float) -> Tensor:
    return (logits / temperature).log_softmax(-1).gather(2, batch.token_ids[..., None])[..., 0]


def of_recipe(recipe: Any, case: Case) -> tuple[Tensor, Tensor]:
    """Compute the loss of a recipe and its gradient by the policy's logits."""
    objective: Any = objective_of(recipe)
    assert isinstance(objective, ComposedObjective)
    leaf, temperature = case.policy.clone().requires_grad_(), recipe.sampling.temperature
    logprobs = chosen(leaf, case.batch, temperature)
    batch = case.batch.with_(
        old_logprobs=logprobs.detach(), teacher_logprobs=chosen(case.teacher, case.batch, temperature)
    )
    sums = {}
    if divergence := objective.requires.divergences.get(TEACHER_DIVERGENCE):
        sums[TEACHER_DIVERGENCE] = divergence(leaf.flatten(0, 1), case.teacher.flatten(0, 1), temperature).view(
            logprobs.shape
        )
    batch = objective.prepare(advantage_of(recipe)(batch))
    loss = objective(TokenScores(logprobs=logprobs, sums=sums), batch).loss
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_distillation_has_the_loss_of_trl(beta: float, case: Case, tmp_path: Path) -> None:
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    recipe = recipe_of("DistillationTrainer", {"beta": beta, "temperature": 0.7}, tmp_path)
    leaf, head = case.policy.clone().requires_grad_(), torch.eye(WORDS, dtype=torch.float64)
    mask = case.batch.loss_mask
    loss, _, _ = _chunked_divergence_loss(
        leaf, case.teacher, head, head, mask, beta, num_items_in_batch=mask.sum(), temperature=0.7
    )
    assert_same(of_recipe(recipe, case), loss, leaf)


def test_gkd_has_the_loss_of_trl_on_the_policys_own_answers(case: Case, tmp_path: Path) -> None:
    trainer = experimental("gkd").GKDTrainer
    recipe = recipe_of("GKDTrainer", {"lmbda": 1.0, "beta": 0.5, "temperature": 1.0}, tmp_path)
    leaf, mask = case.policy.clone().requires_grad_(), case.batch.loss_mask
    labels = case.batch.token_ids.where(mask, -100)
    loss = trainer.generalized_jsd_loss(leaf, case.teacher, labels, beta=0.5, num_items_in_batch=mask.sum())
    assert_same(of_recipe(recipe, case), loss, leaf)


@pytest.mark.parametrize(("mode", "alpha"), [("full_logits", 1.0), ("full_logits", 0.5), ("sampled_token", 1.0)])
def test_sdpo_has_the_gradient_of_trl_with_a_row_without_a_teacher(
    mode: str, alpha: float, case: Case, tmp_path: Path
) -> None:
    module = experimental("sdpo").sdpo_trainer
    written = {"distillation_mode": mode, "distillation_alpha": alpha, "temperature": 0.9}
    recipe = recipe_of("SDPOTrainer", written, tmp_path)
    teacher = case.teacher.clone()
    teacher[UNTAUGHT] = case.policy[UNTAUGHT]  # as `read_by` has it for such a row
    leaf, mask = case.policy.clone().requires_grad_(), case.batch.loss_mask.double()
    taught = torch.ones(len(mask), dtype=torch.float64)
    taught[UNTAUGHT] = 0
    logits = module.DistillationLogits(
        completion_ids=case.batch.token_ids,
        completion_mask=mask,
        loss_mask=mask * taught[:, None],
        student_logits=leaf / 0.9,
        teacher_logits=teacher / 0.9,
    )
    trainer = SimpleNamespace(
        args=SimpleNamespace(**written, distillation_topk=None, distillation_is_clip=2.0),
        accelerator=SimpleNamespace(gather=lambda value: value),
        _log_self_distillation_metric=lambda *_: None,
    )
    loss = module.SDPOTrainer._compute_self_distillation_loss(trainer, SimpleNamespace(training=True), {}, logits)
    ours = of_recipe(recipe, Case(case.batch, case.policy, teacher))
    assert_same(ours, loss if mode == "full_logits" else None, leaf, gradient_of=loss)


def test_importance_weighted_distillation_has_the_gradient_of_trl(case: Case, tmp_path: Path) -> None:
    trainer = experimental("iw_opd").IWOPDTrainer
    recipe = recipe_of("IWOPDTrainer", {"iw_opd_gamma": 0.7, "temperature": 0.8, "max_length": 64}, tmp_path)
    leaf, mask = case.policy.clone().requires_grad_(), case.batch.loss_mask
    settings = SimpleNamespace(
        temperature=0.8,
        iw_opd_gamma=0.7,
        iw_opd_epsilon=1e-8,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
    )
    loss = trainer._compute_iw_opd_loss(
        settings,
        leaf,
        case.batch.token_ids,
        case.batch.token_ids.where(mask, -100),
        chosen(case.teacher, case.batch, 0.8),
        num_items_in_batch=mask.sum(),
    )
    assert_same(of_recipe(recipe, case), None, leaf, gradient_of=loss)


def test_another_divergence_has_another_gradient(case: Case, tmp_path: Path) -> None:
    """The comparisons above can fail."""
    first, second = (
        of_recipe(recipe_of("DistillationTrainer", {"beta": beta}, tmp_path), case)[1] for beta in (0.4, 0.5)
    )
    assert (first - second).abs().max() > 1e-4


def experimental(name: str) -> Any:
    import importlib

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        module = importlib.import_module(f"trl.experimental.{name}")
        importlib.import_module(f"trl.experimental.{name}.{name}_trainer")
    return module


def assert_same(
    ours: tuple[Tensor, Tensor], loss: Tensor | None, leaf: Tensor, *, gradient_of: Tensor | None = None
) -> None:
    """Compare with TRL's loss, and its gradient by `leaf`; without `loss`, the gradient alone."""
    whole = loss if gradient_of is None else gradient_of
    assert whole is not None
    (gradient,) = torch.autograd.grad(whole, leaf)
    assert gradient.abs().max() > 1e-4
    torch.testing.assert_close(ours[1], gradient, rtol=1e-6, atol=1e-7)
    if loss is not None:
        torch.testing.assert_close(ours[0], loss.detach().to(ours[0]), rtol=1e-6, atol=1e-7)
