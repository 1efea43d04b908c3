"""One optimiser step: its learning rate, and that nothing which is not finite ever reaches the weights."""

import copy
import math
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import assert_close, batch_of, rollout

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.models.optimiser import (
    Algorithm,
    Optimiser,
    OptimiserSettings,
    adafactor,
    adamw,
    adamw8bit,
    polyak,
    sgd,
)
from outdo.models.policy import Policy
from outdo.models.schedules import Schedule, constant, cosine, linear
from outdo.models.scorer import BatchSizes
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason, Rollout
from outdo.utils.errors import NonFiniteError, UserError

# ---------------------------------------------------------------------------------------------------- learning rate


def rates(steps: int, schedule: Any = constant, *, warmup: int = 0, total: int | None = None) -> list[float]:
    return [schedule(step, total, warmup=warmup) for step in range(steps)]


def test_the_learning_rate_rises_over_the_warmup_and_then_stays_or_falls_to_0_at_the_last_step() -> None:
    assert rates(6, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert_close(rates(8, linear, warmup=2, total=6), [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    wave = [0.5, 1.0, 1.0, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4, 0.0, 0.0]
    assert_close(rates(8, cosine, warmup=2, total=6), wave)


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_schedule_that_falls_is_refused_without_its_last_step(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="needs the number of steps"):
        OptimiserSettings(schedule=schedule)


@pytest.mark.parametrize("lr", ["1", -1e-6, math.nan, math.inf, None])
def test_a_learning_rate_that_is_no_number_is_refused(lr: float) -> None:
    with pytest.raises(ValueError, match="lr: expected a number of 0 or more, found"):
        OptimiserSettings(lr=lr)


# ------------------------------------------------------------------------------------------------------- the step


ALGORITHMS: dict[str, Algorithm] = {"adamw": adamw, "adafactor": adafactor, "adamw8bit": adamw8bit}


def module() -> nn.Module:
    """Its first matrix is just large enough to be kept in 8 bits."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 2))


def fill(model: nn.Module, value: float = 0.01) -> None:
    """Give every weight a gradient; `value` scales it."""
    random = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.grad = value * torch.randn(weight.shape, generator=random)


def everything(model: nn.Module, optimiser: Optimiser) -> dict[str, Tensor]:
    """Copies of all weights and moments."""
    weights = {f"weight {name}": weight.detach().clone() for name, weight in model.named_parameters()}
    for name, moments in optimiser.state()["moments"].items():
        weights |= {f"{key} of {name}": torch.as_tensor(value).clone() for key, value in moments.items()}
    return weights


def assert_same_bits(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name in actual if not actual[name].equal(expected[name])] == []


@pytest.fixture(params=ALGORITHMS)
def trained(request: pytest.FixtureRequest) -> tuple[nn.Module, Optimiser]:
    """A model three steps into its training, so that there are moments to spoil."""
    model = module()
    algorithm = partial(ALGORITHMS[request.param], weight_decay=0.1)
    optimiser = Optimiser(model, OptimiserSettings(lr=0.1, algorithm=algorithm, schedule=partial(constant, warmup=5)))
    for _ in range(3):
        fill(model)
        optimiser.step(0.0)
    return model, optimiser


def test_a_step_equals_that_of_adamw() -> None:
    model, peer = module(), module()
    optimiser = Optimiser(model, OptimiserSettings(lr=0.1, algorithm=partial(adamw, weight_decay=0.1), clip_norm=0.5))
    adam = torch.optim.AdamW(
        [
            {"params": [weight for weight in peer.parameters() if weight.dim() > 1], "weight_decay": 0.1},
            {"params": [weight for weight in peer.parameters() if weight.dim() == 1], "weight_decay": 0.0},
        ],
        lr=0.1,
    )
    for value in (1.0, 0.01, 3.0):
        fill(model, value)
        fill(peer, value)
        optimiser.step(0.0)
        nn.utils.clip_grad_norm_(peer.parameters(), 0.5)
        adam.step()
    assert_close(dict(model.named_parameters()), dict(peer.named_parameters()), tolerance=1e-6)


def test_the_step_uses_and_reports_the_scheduled_learning_rate(trained: tuple[nn.Module, Optimiser]) -> None:
    model, optimiser = trained
    fill(model)
    assert optimiser.step(0.0)["learning_rate"] == pytest.approx(0.08)  # the fourth of five steps of warm-up
    assert [group["lr"] for group in optimiser.inner.param_groups] == pytest.approx([0.08, 0.08])
    assert optimiser.steps == 4


@pytest.mark.parametrize(("place", "bad"), [("loss", math.nan), ("gradient", math.nan), ("gradient", -math.inf)])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments(
    trained: tuple[nn.Module, Optimiser], place: str, bad: float
) -> None:
    model, optimiser = trained
    before = everything(model, optimiser)
    fill(model)
    if place == "gradient":
        gradient = next(model.parameters()).grad
        gradient[0, 0] = bad
    metrics = optimiser.step(bad if place == "loss" else 0.0)
    assert_same_bits(everything(model, optimiser), before)
    assert metrics["updates/refused"] == 1
    assert metrics["updates/empty"] == 0
    assert optimiser.steps == 3
    assert all(weight.grad is None for weight in model.parameters())


def test_a_gradient_of_zero_moves_nothing_and_is_no_step(trained: tuple[nn.Module, Optimiser]) -> None:
    model, optimiser = trained
    before = everything(model, optimiser)
    fill(model, 0.0)
    metrics = optimiser.step(0.0)
    assert_same_bits(everything(model, optimiser), before)
    assert metrics["updates/empty"] == 1
    assert metrics["updates/refused"] == 0
    assert optimiser.steps == 3


def test_the_run_stops_after_so_many_refusals_in_a_row(trained: tuple[nn.Module, Optimiser]) -> None:
    model, optimiser = trained
    for loss in (math.nan, math.nan, 0.0, math.nan, math.nan):  # never three in a row
        fill(model)
        optimiser.step(loss)
    before = everything(model, optimiser)
    fill(model)
    with pytest.raises(NonFiniteError, match=r"3 updates in a row.*nan"):
        optimiser.step(math.nan)
    assert_same_bits(everything(model, optimiser), before)


def test_a_saved_optimiser_continues_with_the_same_bits(trained: tuple[nn.Module, Optimiser]) -> None:
    model, optimiser = trained
    fill(model)
    optimiser.step(math.nan)
    resumed_model = module()
    resumed_model.load_state_dict(model.state_dict())
    resumed = Optimiser(resumed_model, optimiser.settings)
    resumed.load_state(unpack(*pack(optimiser.state())))  # as through a checkpoint
    for value in (0.5, 0.02):
        for each, its in ((model, optimiser), (resumed_model, resumed)):
            fill(each, value)
            its.step(0.0)
    assert_same_bits(everything(resumed_model, resumed), everything(model, optimiser))
    assert resumed.steps == optimiser.steps == 5


def test_refusals_in_a_row_are_remembered_across_a_resume(trained: tuple[nn.Module, Optimiser]) -> None:
    model, optimiser = trained
    for _ in range(2):
        fill(model)
        optimiser.step(math.nan)
    resumed = Optimiser(model, optimiser.settings)
    resumed.load_state(optimiser.state())
    fill(model)
    with pytest.raises(NonFiniteError):
        resumed.step(math.nan)


def test_the_state_of_another_model_is_refused(trained: tuple[nn.Module, Optimiser]) -> None:
    other = Optimiser(nn.Linear(3, 4), OptimiserSettings())
    with pytest.raises(ValueError, match="another model"):
        other.load_state(trained[1].state())


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_frozen_weights_are_left_alone(algorithm: Algorithm) -> None:
    model = module()
    model[0].requires_grad_(False)
    frozen = {name: weight.clone() for name, weight in model[0].named_parameters()}
    optimiser = Optimiser(model, OptimiserSettings(lr=0.1, algorithm=partial(algorithm, weight_decay=0.5)))
    for weight in optimiser.weights.values():
        weight.grad = torch.ones_like(weight)
    optimiser.step(0.0)
    assert all(weight.equal(frozen[name]) for name, weight in model[0].named_parameters())


# ---------------------------------------------------------------------------------------------------- algorithms


def kept_bytes(optimiser: Optimiser, name: str) -> int:
    moments = optimiser.state()["moments"][name].values()
    return sum(value.nbytes for value in moments if isinstance(value, Tensor))


def after_a_step(algorithm: Algorithm, model: nn.Module) -> Optimiser:
    optimiser = Optimiser(model, OptimiserSettings(lr=0.1, algorithm=algorithm))
    fill(model)
    optimiser.step(0.0)
    return optimiser


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_each_algorithm_learns(algorithm: Algorithm) -> None:
    model = module()
    optimiser = Optimiser(model, OptimiserSettings(lr=0.02, algorithm=algorithm))
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    losses: list[float] = []
    for _ in range(40):
        loss = (model(inputs) - inputs[:, :2]).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        optimiser.step(losses[-1])
    assert losses[-1] < losses[0] / 4


def test_the_state_of_adamw_is_two_numbers_a_weight_and_that_of_the_others_far_less() -> None:
    large, weights = "weight", 256 * 128
    adam, factored, eight = (
        kept_bytes(after_a_step(algorithm, nn.Linear(256, 128)), large) for algorithm in ALGORITHMS.values()
    )
    step = 4
    assert adam == 8 * weights + step
    assert factored == 4 * (256 + 128) + step  # one for each row and each column
    tables, scales = 2 * 4 * 256, 2 * 4 * weights // 256
    assert eight == 2 * weights + tables + scales


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_only_matrices_decay(algorithm: Algorithm) -> None:
    def moved(weight_decay: float) -> dict[str, Tensor]:
        model = module()
        after_a_step(partial(algorithm, weight_decay=weight_decay), model)
        return dict(model.named_parameters())

    plain, decayed = moved(0.0), moved(0.5)
    assert {name for name in plain if not plain[name].equal(decayed[name])} == {"0.weight", "2.weight"}


def test_adamw_in_8_bits_is_close_to_adamw() -> None:
    ways: list[Tensor] = []
    for algorithm in (adamw, adamw8bit):
        model = module()
        start = copy.deepcopy(model[0].weight.detach())
        optimiser = Optimiser(model, OptimiserSettings(lr=0.01, algorithm=algorithm))
        for value in (1.0, 0.5, 0.8):
            fill(model, value)
            optimiser.step(0.0)
        ways.append(model[0].weight.detach() - start)
    assert not ways[0].equal(ways[1])
    assert (ways[0] - ways[1]).norm() < 0.05 * ways[0].norm()


def test_missing_bitsandbytes_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(UserError, match=r'pip install "outdo\[8bit\]"'):
        adamw8bit(list(module().parameters()))


# ------------------------------------------------------------------------------------- faults, through a policy


@pytest.fixture
def policy() -> Policy:
    """A tiny policy one update into its training; a micro-batch holds about two rows."""
    model, tokenizer = tiny_model(hidden=16, layers=1)
    policy = Policy(
        model, tokenizer, optimiser=OptimiserSettings(lr=1e-3), batch_sizes=BatchSizes(micro_batch_tokens=12)
    )
    policy.update(two_groups(), grpo(beta=0.0))
    assert policy.version == 1
    return policy


def two_groups() -> Batch:
    batch = batch_of([rollout(3, 1.0), rollout(4, 0.0)], [rollout(2, 0.0), rollout(3, 1.0)])
    assert len(list(batch.microbatches(12))) == 2
    return per_token(group_standardised)(batch)


def test_a_nan_loss_in_one_of_several_microbatches_leaves_the_policy_unchanged(policy: Policy) -> None:
    before = everything(policy.model, policy.optimiser)
    batch = two_groups()
    batch.advantages[-1, -1] = math.nan  # padding: nothing
    batch.advantages[2, 2] = math.nan
    assert batch.loss_mask[2, 2]
    metrics = policy.update(batch, grpo(beta=0.0)).metrics
    assert math.isnan(metrics["loss"])
    assert_same_bits(everything(policy.model, policy.optimiser), before)
    assert metrics["updates/refused"] == 1


def test_a_refused_update_does_not_change_the_next_one(policy: Policy) -> None:
    model, tokenizer = tiny_model(hidden=16, layers=1)
    undisturbed = Policy(
        model, tokenizer, optimiser=OptimiserSettings(lr=1e-3), batch_sizes=BatchSizes(micro_batch_tokens=12)
    )
    undisturbed.update(two_groups(), grpo(beta=0.0))
    spoilt = two_groups()
    policy.update(spoilt.with_(advantages=spoilt.advantages * math.nan), grpo(beta=0.0))
    for each in (policy, undisturbed):
        each.update(two_groups(), grpo(beta=0.0))
    assert_same_bits(everything(policy.model, policy.optimiser), everything(undisturbed.model, undisturbed.optimiser))


NOTHING_TO_LEARN: dict[str, list[list[Rollout]]] = {
    "the whole group has the same reward": [[rollout(3, 0.7), rollout(2, 0.7), rollout(4, 0.7)]],
    "all answers are truncated": [[rollout(4, finish_reason=FinishReason.length) for _ in range(3)]],
    "a group of one": [[rollout(3, 1.0)]],
}


@pytest.mark.parametrize("groups", NOTHING_TO_LEARN.values(), ids=NOTHING_TO_LEARN)
def test_no_weight_changes_if_there_is_nothing_to_learn(policy: Policy, groups: list[list[Rollout]]) -> None:
    before = everything(policy.model, policy.optimiser)
    update = policy.update(per_token(group_standardised)(batch_of(*groups)), grpo(beta=0.0))
    assert_same_bits(everything(policy.model, policy.optimiser), before)
    assert update.metrics["loss"] == 0
    assert update.metrics["updates/empty"] == 1
    assert all(math.isfinite(value) for value in update.metrics.values())
    assert all(tensor.isfinite().all() for tensor in update.tokens.values())


@pytest.mark.parametrize("minibatches", [1, 2])
def test_an_empty_answer_is_a_row_of_zeros(policy: Policy, minibatches: int) -> None:
    policy.batch_sizes = BatchSizes(micro_batch_tokens=6, minibatches=minibatches)
    batch = per_token(group_standardised)(
        batch_of([rollout(3, 1.0), rollout(0, 0.0)], [rollout(0, 0.0), rollout(0, 1.0)])
    )
    batch = batch.with_(old_logprobs=policy.logprobs(batch))
    update = policy.update(batch, grpo(beta=0.0))
    assert update.metrics["grad_norm"] > 0
    for name, tensor in update.tokens.items():
        assert tensor.shape == batch.token_ids.shape, name
        assert tensor[~batch.loss_mask].eq(0).all(), name


# --------------------------------------------------------------------------------------------- steps without moments


def one_weight(value: float, algorithm: Algorithm, **settings: Any) -> tuple[nn.Parameter, Optimiser]:
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([value, 0.0], dtype=torch.float64))
    return model.weight, Optimiser(model, OptimiserSettings(algorithm=algorithm, **settings))


def step_on(weight: nn.Parameter, optimiser: Optimiser, scale: float = 1.0) -> None:
    """Take a step on the loss scale · (3 w)² / 2."""
    loss = scale * (3 * weight[0]) ** 2 / 2
    loss.backward()
    optimiser.step(float(loss.detach()))


def test_sgd_steps_by_the_learning_rate_times_the_gradient() -> None:
    weight, optimiser = one_weight(2.0, sgd, lr=0.01, clip_norm=1e9)
    step_on(weight, optimiser)
    assert weight[0].item() == pytest.approx(2.0 - 0.01 * 9 * 2.0)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), partial(sgd, momentum=0.9)], ids=[*ALGORITHMS, "sgd"])
def test_weight_decay_shrinks_a_matrix_by_the_same_factor_at_every_step(algorithm: Algorithm) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    inner = partial(algorithm, weight_decay=0.5)([weight])
    inner.param_groups[0]["lr"] = 0.1
    for _ in range(4):
        weight.grad = torch.zeros_like(weight)
        inner.step()
    assert_close(weight.detach(), torch.full((4, 4), 0.95**4))


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, "1"])
def test_a_bound_of_the_gradient_that_is_not_above_0_is_refused(clip_norm: Any) -> None:
    """A gradient times a bound of -1 points uphill, and one times NaN would reach the weights."""
    with pytest.raises(ValueError, match="clip_norm: expected a number above 0"):
        OptimiserSettings(clip_norm=clip_norm)
    with pytest.raises(ValueError, match="patience: expected 1 or more, found 0"):
        OptimiserSettings(patience=0)


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_a_momentum_out_of_range_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum: expected a number from 0 to below 1"):
        one_weight(2.0, partial(sgd, momentum=momentum))


@pytest.mark.parametrize(("scale", "clip_norm"), [(1e-6, 1e9), (1e6, 0.1)])
def test_a_polyak_step_on_a_square_halves_the_distance_at_any_scale_and_clip(scale: float, clip_norm: float) -> None:
    """loss / gradient² · gradient is (9 w² / 2) / (9 w)² · 9 w = w / 2."""
    weight, optimiser = one_weight(2.0, polyak, lr=1e12, clip_norm=clip_norm)
    for expected in (1.0, 0.5, 0.25):
        step_on(weight, optimiser, scale)
        assert weight[0].item() == pytest.approx(expected)


def test_polyak_refuses_a_loss_below_0_and_a_share_of_0() -> None:
    weight, optimiser = one_weight(2.0, polyak, lr=1.0)
    weight.grad = torch.ones_like(weight)
    with pytest.raises(ValueError, match="polyak needs a loss whose minimum is 0"):
        optimiser.step(-0.5)
    with pytest.raises(ValueError, match="share must be above 0"):
        one_weight(2.0, partial(polyak, share=0.0))


@pytest.mark.parametrize("algorithm", [sgd, partial(sgd, momentum=0.9), polyak])
def test_an_optimiser_without_moments_continues_with_the_same_bits(algorithm: Algorithm) -> None:
    model = module()
    optimiser = Optimiser(model, OptimiserSettings(lr=0.1, algorithm=algorithm))
    fill(model)
    optimiser.step(0.3)
    resumed_model = module()
    resumed_model.load_state_dict(model.state_dict())
    resumed = Optimiser(resumed_model, optimiser.settings)
    resumed.load_state(unpack(*pack(optimiser.state())))
    for each, its in ((model, optimiser), (resumed_model, resumed)):
        fill(each, 0.5)
        its.step(0.2)
    assert_same_bits(everything(resumed_model, resumed), everything(model, optimiser))
