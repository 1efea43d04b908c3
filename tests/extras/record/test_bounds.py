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

from outdo.algorithms.objectives import weights
from outdo.algorithms.objectives.base import ComposedObjective, Objective, PlainObjective
from outdo.algorithms.objectives.corrections import off_policy_rows
from outdo.algorithms.objectives.presets import dro, gspo, gspo_token, ppo, reinforce
from outdo.config.names import OBJECTIVES
from outdo.extras.record.bounds import bounds, is_unreachable, policy_push
from outdo.types import Batch, Terms, TokenScores

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
    **dict.fromkeys(["cispo", "reinforce", "rloo", "remax", "opo", "gpg", "distillation", "rejection"], nowhere),
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
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    rows=st.lists(st.lists(st.floats(0.02, 0.98), min_size=1, max_size=4), min_size=2, max_size=4),
    signs=st.lists(st.sampled_from([0.0, 0.2, -0.2, 1.0, -1.0]), min_size=4, max_size=4),
)
def test_the_push_ends_exactly_at_the_bound(name, rows, signs):
    asked, batch = objective(name), one_group(rows, signs[: len(rows)])
    batch = asked.prepare(batch.with_(old_entropy=batch.rollout_logprobs))
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


def test_the_bound_is_the_first_end_of_a_push_that_returns():
    """A good token is pushed up to 1 nat, then from 1.5 to 3; the other one always."""

    def hurdle(scores: TokenScores, batch: Batch) -> Terms:
        assert batch.old_logprobs is not None
        gone = (scores.logprobs - batch.old_logprobs).detach()
        free = (gone < 1.0) | ((gone > 1.5) & (gone < 3.0)) | (batch.token_ids == 11)
        policy = (free * scores.logprobs * batch.loss_mask).sum()
        return Terms(policy=policy, divergence=policy, entropy=policy, loss=-policy)

    close(found(PlainObjective(hurdle), one_group([[0.1, 0.1]], [1.0])), [[math.nan, math.log(0.1) + 1, math.nan]])


def test_the_caller_sets_the_search_distance():
    batch = one_group([[0.5]], [0.3])
    assert bounds(dro(), batch, pushes(dro(), batch), farthest=2.9).isnan().all()
    assert bounds(dro(), batch, pushes(dro(), batch), farthest=3.1).isfinite().any()


def test_a_gate_that_rounds_to_0_in_single_precision_is_not_a_bound():
    for name in ("sapo", "vespo"):
        batch = one_group([[0.01, 0.02, 0.03]] * 2, [1.0, -1.0])
        assert batch.old_logprobs is not None
        batch = batch.with_(old_logprobs=batch.old_logprobs.float())
        assert found(objective(name), batch).isnan().all()


def test_single_precision_is_sufficient():
    batch = one_group(ROWS, SIGNS)
    assert batch.old_logprobs is not None
    single = batch.with_(old_logprobs=batch.old_logprobs.float())
    bound = found(ppo(), single)
    assert bound.dtype == torch.float32
    close(bound.double(), found(ppo(), batch))


def test_a_push_that_is_exactly_0_where_it_changes_sign_has_its_bound_there():
    probabilities = torch.linspace(0.05, 0.9, 40).tolist()
    batch = one_group([probabilities], [-0.3536])
    assert batch.old_logprobs is not None
    assert batch.advantages is not None
    single = batch.with_(old_logprobs=batch.old_logprobs.float(), advantages=batch.advantages.float())
    close(found(dro(), single)[:, 1:].double(), batch.old_logprobs[:, 1:] - 3.536, 2e-6)


def test_the_weight_of_a_token_does_not_change_its_bound():
    batch = one_group(ROWS, SIGNS)
    close(found(replace(ppo(), weight=weights.prompt_mean), batch), found(ppo(), batch), 0.0)


def test_reference_and_entropy_bonus_do_not_change_a_bound():
    batch = one_group(ROWS, SIGNS)
    close(found(replace(ppo(), beta=100.0), batch), found(ppo(), batch), 0.0)
    close(found(replace(ppo(), entropy_bonus=0.1), batch), found(ppo(), batch), 0.0)


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


def test_missing_old_logprobs_are_an_error():
    batch = one_group(ROWS, SIGNS)
    with pytest.raises(ValueError, match="old_logprobs"):
        bounds(ppo(), batch.with_(old_logprobs=None), torch.ones_like(batch.rollout_logprobs))


def test_a_bound_of_probability_one_or_more_is_unreachable():
    batch = one_group([[0.83, 0.84, 0.2]], [1.0])
    assert is_unreachable(found(ppo(), batch), batch).tolist() == [[False, False, True, False]]  # 1 / 1.2 = 0.8333
    marked = batch.with_(prepared={"unreachable": torch.tensor([[True, True, False, False]])})
    assert is_unreachable(found(ppo(), batch), marked).tolist() == [[False, True, True, False]]


def test_an_end_that_depends_on_other_answers_is_not_a_bound_in_any_order():
    """The middle one hardly counts: what ends the push of the first is how far the last has gone, and the reverse."""
    assert found(objective("tpo"), one_group([[0.5], [0.001] * 3, [0.5]], [0.0, 0.0, 0.2])).isnan().all()
    assert found(objective("tpo"), one_group([[0.5], [0.5], [0.001] * 3], [0.0, 0.2, 0.0])).isnan().all()


def test_tokens_of_a_sequence_move_together_in_groups_of_any_size():
    batch = one_group([[0.5], [0.1, 0.2, 0.3, 0.4, 0.5], [0.9, 0.8]], [1.0, -1.0, 0.5])
    assert batch.old_logprobs is not None
    way = batch.advantages.sign()  # type: ignore[union-attr]
    expected = torch.where(way > 0, math.log1p(4e-4), math.log1p(-3e-4)) + batch.old_logprobs
    close(found(gspo(), batch), expected.where(batch.loss_mask, torch.nan))
