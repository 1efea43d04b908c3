"""The sum of rewards that cancel is 0, and no other sum changes."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo import load_reward
from outdo.rewards.reward_sum import reward_sum
from outdo.rewards.types import RewardInput

DECIMALS = st.lists(st.integers(-900, 900), min_size=1, max_size=8)


@given(DECIMALS, st.sampled_from([10, 1000, 1_000_000]))
def test_a_sum_is_0_where_the_decimals_add_up_to_0_and_only_there(numbers: list[int], unit: int) -> None:
    rewards = [number / unit for number in numbers]
    exact = float(Fraction(sum(numbers), unit))
    assert (reward_sum(rewards) == 0.0) == (exact == 0.0)
    assert reward_sum(rewards) == pytest.approx(exact, rel=1e-9)
    if exact:
        assert reward_sum(rewards) == sum(rewards)


def test_what_is_not_finite_stays_so() -> None:
    assert reward_sum([1.0, math.inf]) == math.inf
    assert math.isnan(reward_sum([math.inf, -math.inf]))
    assert reward_sum([]) == 0.0


def test_weighted_rewards_that_cancel_are_0() -> None:
    parts = [lambda completion, value=value: value for value in (0.1, 0.2, -0.3)]
    (output,) = load_reward(parts)([RewardInput(prompt="", completion="", answer=None)])
    assert 0.1 + 0.2 - 0.3 != 0.0
    assert output.value == 0.0
