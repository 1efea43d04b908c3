"""The penalty for long answers: DAPO's equation 13, in the form of TRL."""

import pytest

from outdo.rewards import RewardInput, Status, load_reward
from outdo.rewards.overlong import overlong


def penalty(length: int, max_tokens: int, cache: int) -> float:
    return overlong("", [7] * length, max_tokens=max_tokens, cache=cache)


@pytest.mark.parametrize(
    ("length", "value"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0), (1000, -1.0)],
)
def test_the_penalty_begins_after_the_cache_boundary_and_is_full_at_the_limit(length: int, value: float):
    assert penalty(length, 100, 20) == pytest.approx(value)


def test_without_a_cache_only_tokens_beyond_the_limit_are_penalised():
    assert [penalty(length, 4, 0) for length in (3, 4, 5)] == [0.0, 0.0, -1.0]


def test_with_a_cache_as_long_as_the_limit_every_token_is_penalised():
    assert [penalty(length, 4, 4) for length in range(6)] == [0.0, -0.25, -0.5, -0.75, -1.0, -1.0]


def test_the_penalty_is_added_to_another_reward():
    reward = load_reward(["exact", {"name": "overlong", "weight": 0.5, "max_tokens": 4, "cache": 2}])
    outputs = reward([RewardInput(prompt="", completion="1", answer="1", completion_ids=(1,) * n) for n in (2, 3, 4)])
    assert [output.value for output in outputs] == [1.0, 0.75, 0.5]
    assert outputs[1].parts == {"exact": 1.0, "overlong": -0.5}


@pytest.mark.parametrize("cache", [-1, 5])
def test_a_cache_outside_the_limits_fails_with_a_reason(cache: int):
    output = load_reward({"name": "overlong", "max_tokens": 4, "cache": cache})(
        [RewardInput(prompt="", completion="", answer=None)]
    )[0]
    assert output.status is Status.failed
    assert f"cache = {cache} must lie between 0 and max_tokens = 4" in output.reason
