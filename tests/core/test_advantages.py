"""How much better an answer was than its fellows: numbers worked out by hand, and rollouts that must not count."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toys import assert_close, batch_of, rollout

from outdo.advantages import RewardAdvantage, group_centred, group_standardised, per_token
from outdo.types import Rollout

BOTH = pytest.mark.parametrize("advantage", [group_standardised, group_centred])


def rewards(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_group(values: Tensor) -> Tensor:
    return torch.zeros(len(values), dtype=torch.int64)


def advantages_of(members: list[Rollout], advantage: RewardAdvantage = group_standardised) -> Tensor:
    filled = per_token(advantage)(batch_of(members)).advantages
    assert filled is not None
    return filled


def test_the_two_groups_of_the_hugging_face_llm_course() -> None:
    # Its code has eps = 1e-8, of which .8660 follows; the .8659 printed there is what eps = 1e-4 gives.
    values, group = rewards(1, 0, 0, 1, 0, 0, 1, 1), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    signs = 2 * values - 1
    assert_close(group_standardised(values, group, eps=1e-8), 0.8660254 * signs, tolerance=1e-7)
    assert_close(group_standardised(values, group, eps=1e-4), 0.8658754 * signs, tolerance=1e-7)
    assert_close(group_centred(values, group), 0.5 * signs)


def test_eight_answers_of_which_four_are_right() -> None:
    values = rewards(1, 0, 0, 1, 0, 1, 0, 1)
    expected = 0.9354143 * (2 * values - 1)
    assert_close(group_standardised(values, one_group(values), eps=1e-8), expected, tolerance=1e-7)


def test_eps_is_added_to_the_deviation() -> None:
    values = rewards(0, 2, 4)  # σ = 2
    assert_close(group_standardised(values, one_group(values), eps=2.0), rewards(-0.5, 0, 0.5))
    assert_close(group_standardised(values, one_group(values)), rewards(-1, 0, 1) * 2 / (2 + 1e-6))


def test_groups_need_not_be_neighbours() -> None:
    values, group = rewards(0, 5, 4, 9), torch.tensor([7, 3, 7, 3])
    assert_close(group_centred(values, group), rewards(-2, -2, 2, 2))
    assert_close(group_standardised(values, group), rewards(-1, -1, 1, 1) / math.sqrt(2), tolerance=1e-6)


@BOTH
def test_a_group_of_one_gets_0(advantage: RewardAdvantage) -> None:
    assert advantage(rewards(3.7, 1, 0), torch.tensor([0, 1, 1]))[0] == 0


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1 + 0.2, -1 / 3, 1e30, -1e30, 1e-30, 3e38])
@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_equal_rewards_get_exactly_0(advantage: RewardAdvantage, dtype: torch.dtype, value: float, size: int) -> None:
    values = torch.full((size,), value, dtype=dtype)
    assert advantage(values, one_group(values)).eq(0).all()


@pytest.mark.parametrize("large", [1e10, 1e20, 1e30, 1e38])
def test_one_huge_reward_spoils_neither_its_own_group_nor_the_others(large: float) -> None:
    values = torch.tensor([large, 0, 0, large, 1, 0, 0, 1])
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    expected = 0.8660254 * torch.tensor([1.0, -1, -1, 1, 1, -1, -1, 1])
    assert_close(group_standardised(values, group), expected, tolerance=1e-5)
    assert_close(group_centred(values, group)[4:], torch.tensor([0.5, -0.5, -0.5, 0.5]))


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.floats(-50, 50))
def test_a_constant_added_to_every_reward_changes_nothing(values: list[float], shift: float) -> None:
    tensor = rewards(*values)
    assert_close(
        group_centred(tensor + shift, one_group(tensor)), group_centred(tensor, one_group(tensor)), tolerance=1e-9
    )
    assert group_centred(tensor, one_group(tensor)).sum().abs() < 1e-9


@BOTH
def test_a_rollout_without_a_reward_is_in_no_mean_and_no_deviation(advantage: RewardAdvantage) -> None:
    good, poor, bad = rollout(2, 1.0), rollout(2, 0.25), rollout(2, 0.0)
    failed = rollout(2, 0.0, verdict="failed")
    with_failed = advantages_of([good, failed, poor, bad, failed], advantage)
    assert with_failed[[1, 4]].eq(0).all()
    assert with_failed[[0, 2, 3]].equal(advantages_of([good, poor, bad], advantage))


def test_every_trained_token_gets_its_rollouts_advantage_and_no_other_token_any() -> None:
    advantages = advantages_of([rollout(3, 1.0, mask=(True, False, True)), rollout(1, 0.0)], group_centred)
    assert advantages.tolist() == [[0.0, 0.5, 0.0, 0.5], [0.0, -0.5, 0.0, 0.0]]


def test_an_empty_answer_still_counts_in_the_mean_of_its_group() -> None:
    advantages = advantages_of([rollout(1, 1.0), rollout(0, 0.0)], group_centred)
    assert advantages.tolist() == [[0.0, 0.5], [0.0, 0.0]]


@BOTH
def test_a_batch_without_any_reward_has_no_advantages(advantage: RewardAdvantage) -> None:
    assert advantages_of([rollout(verdict="failed"), rollout(verdict="timed_out")], advantage).eq(0).all()
