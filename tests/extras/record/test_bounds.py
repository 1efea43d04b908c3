"""Where an objective stops to push: every preset's bound, worked out by hand, and what must be a bound for any."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from contexts import essay
from hypothesis import given, settings
from hypothesis import strategies as st
from record_cases import groups_of, objective, one_group, rollout
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.algorithms.objectives.corrections import off_policy_rows
from outdo.algorithms.objectives.presets import gspo_token, ppo, reinforce
from outdo.config.names import OBJECTIVES
from outdo.extras.record.bounds import bounds, is_unreachable, policy_push
from outdo.types import Batch

ROWS = [[0.5, 0.25], [0.4, 0.3], [0.9, 0.2]]
SIGNS = [0.3, -0.3, 0.3]
ENGINE = math.exp(-0.5)  # the engine's probability of every token of `one_group`
ByHand = Callable[[float, float], float]  # p, Â


def pushes(objective: Objective, batch: Batch) -> Tensor:
    """At π_old."""
    assert batch.old_logprobs is not None
    return policy_push(objective, batch, batch.old_logprobs)


def found(objective: Objective, batch: Batch) -> Tensor:
    """The bounds of a batch, once the objective has prepared it."""
    batch = objective.prepare(batch)
    return bounds(objective, batch, pushes(objective, batch))


def close(actual: Tensor, expected: Tensor | list[list[float]], tolerance: float = 1e-6) -> None:
    wanted = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=tolerance, equal_nan=True)


# ----------------------------------------------------------------------------------------------------- by hand


def clipped(low: float, high: float) -> ByHand:
    return lambda p, a: math.log(p) + math.log1p(high if a > 0 else -low)


def binary_kl(p: float, a: float) -> float:
    """Where p log(p/q) + (1-p) log((1-p)/(1-q)) = 0.05, from a table of its own."""
    roots = {0.5: 0.6542421650879229, 0.25: 0.4002290371214977, 0.9: 0.9687216037277206, 0.2: 0.3435357034860945}
    return math.log({**roots, 0.4: 0.2552724256070975, 0.3: 0.17126174576052183}[p])


def nowhere(p: float, a: float) -> float:
    return math.nan


BY_HAND: dict[str, ByHand] = {
    **dict.fromkeys(["grpo", "grpo_clip", "ppo", "dr_grpo", "bnpo", "reinforce_pp"], clipped(0.2, 0.2)),
    "dapo": clipped(0.2, 0.28),
    "gspo": clipped(3e-4, 4e-4),
    "gspo_token": clipped(3e-4, 4e-4),
    "luspo": clipped(2e-3, 2.5e-3),
    "rloo_clip": lambda p, a: math.log(p) + math.log1p(math.copysign(0.2, a)) / 2,  # a product of two ratios
    "gmpo": lambda p, a: math.log(p) + math.copysign(0.4, a),
    "clip_cov": lambda p, a: math.log(p) + math.log(2) if a > 0 else math.nan,  # no ratio is below 0
    "kl_cov": lambda p, a: math.log(p) if p == 0.9 else math.nan,  # marked; the penalty of 1 is more than Â
    "dppo_tv": lambda p, a: math.log(p + math.copysign(0.15, a)),
    "dppo_kl": binary_kl,
    "prime_rl": lambda p, a: math.log(ENGINE + math.copysign(0.2, a)),  # tokens beyond it are pulled back to it
    "prime_rl_ipo": lambda p, a: math.log(ENGINE + math.copysign(0.1, a)),
    "dro": lambda p, a: math.log(p) + a / 0.1,
    **dict.fromkeys(["cispo", "reinforce", "rloo", "remax", "opo", "gpg", "distillation", "gkd", "rejection"], nowhere),
    **dict.fromkeys(["sapo", "vespo"], nowhere),  # their push fades, and has no end
    "tpo": nowhere,  # it ends where the other answers let it
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_bound_matches_the_equation(name):
    expected = [[math.nan, *(BY_HAND[name](p, a) for p in row)] for row, a in zip(ROWS, SIGNS, strict=True)]
    close(found(objective(name), one_group(ROWS, SIGNS)), expected)


def test_every_preset_has_an_expected_bound():
    assert set(OBJECTIVES) - set(BY_HAND) == {"target", "target_essay"}


def test_a_target_is_its_own_bound():
    batch = essay(merge="none").prepare(one_group([[0.25, 0.36], [0.5, 0.4]], [1.0, -1.0]))
    expected = [[math.nan, math.log(0.5), math.log(0.6)], [math.nan, math.log(0.25), math.log(0.16)]]
    close(bounds(essay(merge="none"), batch, torch.zeros_like(batch.rollout_logprobs)), expected)


# ------------------------------------------------------------------------------------------------- any objective


@pytest.mark.parametrize("name", sorted(OBJECTIVES.keys() - {"target", "target_essay"}))
@settings(max_examples=4)
@given(
    rows=st.lists(st.lists(st.floats(0.02, 0.98), min_size=1, max_size=4), min_size=2, max_size=4),
    signs=st.lists(st.sampled_from([0.0, 0.2, -0.2, 1.0, -1.0]), min_size=4, max_size=4),
)
def test_the_push_ends_exactly_at_the_bound(name, rows, signs):
    asked, batch = objective(name), one_group(rows, signs[: len(rows)])
    batch = asked.prepare(batch.with_(old_sums={"entropy": batch.rollout_logprobs}))
    assert batch.old_logprobs is not None
    push = pushes(asked, batch)
    bound = bounds(asked, batch, push)
    has, step = bound.isfinite(), push.sign() * 2e-6
    at = bound.where(has, batch.old_logprobs)
    assert not (has & (push == 0)).any()
    is_first = has & ((bound - batch.old_logprobs) * push.sign() > 4e-6)  # else short of it is before the start
    assert (policy_push(asked, batch, at - step.where(has, 0.0)) * push)[is_first].gt(0).all()
    assert (policy_push(asked, batch, at + step.where(has, 0.0)) * push)[has].le(0).all()


def test_tokens_of_an_answer_with_opposite_pushes_move_by_the_same_distance():
    """Two up and one down: the mean goes by a third of the way, so that good tokens stop at 3 times the bound."""
    batch = one_group([[0.1, 0.2, 0.3]], [1.0])
    batch = batch.with_(advantages=batch.loss_mask * torch.tensor([0.0, 1.0, -1.0, 1.0], dtype=torch.float64))
    far = 3 * math.log1p(4e-4)
    close(found(gspo_token(), batch), [[math.nan, math.log(0.1) + far, math.nan, math.log(0.3) + far]])


def test_a_correction_that_drops_an_answer_sets_a_bound():
    dropping: ComposedObjective = replace(reinforce(), correction=off_policy_rows(limit=0.7, by="old"))
    batch = one_group([[0.5, 0.25], [0.4, 0.3]], [1.0, -1.0])
    expected = [[math.nan] * 3, [math.nan, math.log(0.4) - 0.7, math.log(0.3) - 0.7]]
    close(found(dropping, batch), expected)


# --------------------------------------------------------------------------------------------------------- edges


def test_unpushed_and_untrained_tokens_have_no_bound():
    batch = one_group(ROWS, [0.3, 0.0, 0.3])
    mask = batch.loss_mask.clone()
    mask[2] = False
    batch = batch.with_(loss_mask=mask)
    wild = torch.full_like(batch.rollout_logprobs, 1.0).double()  # says of all tokens that they are pushed
    bound = bounds(ppo(), batch, wild.where(batch.advantages != 0, 0.0))
    assert bound.isfinite().tolist() == [[False, True, True], [False] * 3, [False] * 3]


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_a_batch_without_trained_tokens_has_no_bounds(name):
    for groups in ([], groups_of([rollout(2, status="failed"), rollout(0)])):
        batch = Batch.from_groups(groups)
        nothing = torch.zeros_like(batch.rollout_logprobs)
        batch = objective(name).prepare(batch.with_(advantages=nothing, old_logprobs=nothing))
        bound = bounds(objective(name), batch, nothing)
        assert bound.shape == batch.token_ids.shape
        assert bound.isnan().all()


def test_a_bound_of_probability_one_or_more_is_unreachable():
    batch = one_group([[0.83, 0.84, 0.2]], [1.0])
    assert is_unreachable(found(ppo(), batch), batch).tolist() == [[False, False, True, False]]  # 1 / 1.2 = 0.8333
    marked = batch.with_(prepared={"unreachable": torch.tensor([[True, True, False, False]])})
    assert is_unreachable(found(ppo(), batch), marked).tolist() == [[False, True, True, False]]
