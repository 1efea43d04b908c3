"""Rounding decides nothing: advantages of decimal rewards, of any size, against exact rational numbers."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toys import batch_of, rollout

from outdo.algorithms.advantages import (
    Advantage,
    RewardAdvantage,
    batch_standardised,
    best_of_group,
    gdpo,
    gpg,
    group_centred,
    group_standardised,
    leave_one_out,
    length_weighted,
    max_rl,
    optimal_token,
    per_token,
    reinforce_pp_baseline,
    remax,
    rewards_of,
    sign,
    tree,
    turn_to_go,
)
from outdo.rewards.reward_sum import reward_sum
from outdo.types import Rollout

Numbers = list[Fraction]
Exact = Callable[[Numbers, float], list[float]]
"""`(rewards, eps) -> advantages` of one group, which is also the batch."""

DTYPES = st.sampled_from([torch.float32, torch.float64])
UNITS = [Fraction(1, 10**6), Fraction(1, 1000), Fraction(1, 10), Fraction(1, 3), Fraction(1), Fraction(1000)]


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def centred(values: Numbers) -> Numbers:
    return [value - mean(values) for value in values]


def sigma(values: Numbers) -> float:
    return math.sqrt(sum(value**2 for value in centred(values)) / max(1, len(values) - 1))


def standardised(values: Numbers, eps: float) -> list[float]:
    spread = sigma(values)
    return [float(value) / (spread + eps) if spread else 0.0 for value in centred(values)]


def others_left_out(values: Numbers, eps: float) -> list[float]:
    pairs = [(value, [*values[:place], *values[place + 1 :]]) for place, value in enumerate(values)]
    return [float(value - mean(others)) if others else 0.0 for value, others in pairs]


def best(values: Numbers, eps: float) -> list[float]:
    pairs = [(value, [*values[:place], *values[place + 1 :]]) for place, value in enumerate(values)]
    return [max(0.0, float(value - max(others))) if others else 0.0 for value, others in pairs]


def over_the_mean(values: Numbers, eps: float) -> list[float]:
    return [float(value / mean(values)) if mean(values) > 0 else 0.0 for value in centred(values)]


def scaled_up(values: Numbers, eps: float) -> list[float]:
    return [float(value) for value in centred(values)]  # the only group: B / (B - M) is 1, or every answer has 0


def signs(values: Numbers, eps: float) -> list[float]:
    return [float((value > 0) - (value < 0)) for value in centred(values)]


WITH_EPS: dict[str, tuple[Callable[..., Tensor], Exact]] = {
    "group_standardised": (group_standardised, standardised),
    "batch_standardised": (batch_standardised, standardised),
}
WITHOUT_EPS: dict[str, tuple[RewardAdvantage, Exact]] = {
    "group_centred": (group_centred, scaled_up),
    "leave_one_out": (leave_one_out, others_left_out),
    "best_of_group": (best_of_group, best),
    "max_rl": (max_rl, over_the_mean),
    "gpg": (gpg, scaled_up),
}
RELATIVE: dict[str, RewardAdvantage] = {
    **{name: advantage for name, (advantage, _) in WITHOUT_EPS.items()},
    **{f"{name}, eps 1e-9": partial(advantage, eps=1e-9) for name, (advantage, _) in WITH_EPS.items()},
    "sign": sign,
    "leave_one_out, whitened": partial(leave_one_out, whiten=True, eps=1e-9),
    "best_of_group, scaled": partial(best_of_group, scale=True, eps=1e-9),
}


def in_one_group(advantage: RewardAdvantage, values: Numbers, dtype: torch.dtype) -> list[float]:
    rewards = torch.tensor([float(value) for value in values], dtype=torch.float64).to(dtype)
    return advantage(rewards, torch.zeros(len(values), dtype=torch.int64)).tolist()


def as_held(values: Numbers, dtype: torch.dtype) -> Numbers:
    """Return the numbers that a tensor holds in the place of `values`, exactly."""
    return [Fraction(value) for value in torch.tensor([float(each) for each in values]).to(dtype).double().tolist()]


@st.composite
def rewards(draw: st.DrawFn) -> Numbers:
    """Return rewards of a group: whole numbers of a unit, which few floats hold exactly, up to ±1e6."""
    unit = draw(st.sampled_from(UNITS))
    most = min(1000, int(10**6 / unit))
    return [unit * number for number in draw(st.lists(st.integers(-most, most), min_size=1, max_size=12))]


@st.composite
def balanced(draw: st.DrawFn) -> Numbers:
    """Return rewards whose mean is exactly 0."""
    values = draw(rewards())
    return [*values, -sum(values, Fraction(0))]


@pytest.mark.parametrize("name", RELATIVE)
@given(rewards(), st.integers(1, 12), DTYPES)
def test_equal_rewards_have_advantages_of_exactly_0(name: str, values: Numbers, size: int, dtype: torch.dtype) -> None:
    assert in_one_group(RELATIVE[name], values[:1] * size, dtype) == [0.0] * size


@given(balanced(), DTYPES)
def test_max_rl_is_exactly_0_where_the_mean_reward_is(values: Numbers, dtype: torch.dtype) -> None:
    assert in_one_group(max_rl, values, dtype) == [0.0] * len(values)


@given(rewards(), DTYPES)
def test_a_reward_equal_to_the_mean_of_its_group_has_no_sign(values: Numbers, dtype: torch.dtype) -> None:
    values = [*values, mean(values)]
    found, rounding = in_one_group(sign, values, dtype), 8 * torch.finfo(dtype).eps * max(map(abs, values))
    assert found[-1] == 0
    for value, far, of_value in zip(found, centred(values), signs(values, 0.0), strict=True):
        assert value == (of_value if abs(far) > rounding or value else 0.0)


@pytest.mark.parametrize("name", [*WITHOUT_EPS, *WITH_EPS])
@given(rewards(), DTYPES, st.sampled_from([1e-4, 1e-6, 1e-9]))
def test_advantages_are_those_of_exact_rational_numbers(
    name: str, values: Numbers, dtype: torch.dtype, eps: float
) -> None:
    """Up to the rounding of a mean, in units of what the advantage is divided by."""
    values = as_held(values, dtype)
    rounding = 16 * torch.finfo(dtype).eps * float(max(map(abs, values)))
    if name in WITH_EPS:
        advantage, exact = WITH_EPS[name]
        found, unit = in_one_group(partial(advantage, eps=eps), values, dtype), sigma(values) + eps
    else:
        advantage, exact = WITHOUT_EPS[name]
        found, unit = in_one_group(advantage, values, dtype), 1.0
    if name == "max_rl":
        if 0 < mean(values) <= rounding:
            return  # it cannot be told from a mean of 0
        unit = float(mean(values)) ** 2 / float(max(map(abs, values))) if mean(values) > 0 else 1.0
    for value, expected in zip(found, exact(values, eps), strict=True):
        assert math.isclose(value, expected, rel_tol=0.0, abs_tol=rounding / unit)


@given(st.lists(st.integers(0, 10), min_size=2, max_size=8), st.sampled_from([1e-4, 1e-9]))
def test_parts_of_the_reward_that_cancel_have_advantages_of_exactly_0_in_gdpo(numbers: list[int], eps: float) -> None:
    """A part and its complement: the shorter an answer, the worse it is, by exactly as much."""
    members = [rollout(1, 1.0, reward_parts={"long": n / 10, "short": (10 - n) / 10}) for n in numbers]
    assert gdpo(batch_of(members), eps=eps).advantages.eq(0).all()


# -------------------------------------------------------------------------------------------- rewards of several turns


OF_BATCHES: dict[str, Advantage] = {
    **{name: per_token(advantage) for name, advantage in RELATIVE.items()},
    "length_weighted": length_weighted,
    "optimal_token": optimal_token,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "tree": tree,
    "tree, scaled": partial(tree, scale=True, eps=1e-9),
    "turn_to_go": turn_to_go,
}


def episode(turns: Numbers) -> Rollout:
    """An episode with a reward on each of its tokens, whose sum is its reward."""
    of_turns = [float(reward) for reward in turns]
    return rollout(len(turns), reward_sum(of_turns), token_rewards=tuple(of_turns))


@st.composite
def equal_episodes(draw: st.DrawFn) -> list[Numbers]:
    """Return the rewards of the turns of some episodes, whose sums are equal."""
    unit = draw(st.sampled_from(UNITS))
    turns = st.lists(st.integers(-900, 900), max_size=5)
    total = draw(st.integers(-1000, 1000))
    return [
        [unit * number for number in (*numbers, total - sum(numbers))]
        for numbers in draw(st.lists(turns, min_size=2, max_size=5))
    ]


@given(equal_episodes())
def test_episodes_with_equal_sums_of_rewards_have_equal_rewards(episodes: list[Numbers]) -> None:
    batch = batch_of([episode(turns) for turns in episodes])
    assert rewards_of(batch).equal(batch.rewards)
    assert len(batch.rewards.unique()) == 1


@pytest.mark.parametrize("name", OF_BATCHES)
@given(equal_episodes())
def test_the_first_token_of_episodes_with_equal_rewards_has_an_advantage_of_exactly_0(
    name: str, episodes: list[Numbers]
) -> None:
    """All of the rewards come after it, so it has the reward of the episode as its return."""
    batch = batch_of([episode(turns) for turns in episodes])
    ones = torch.ones(batch.token_ids.shape)
    batch = batch.with_(old_logprobs=-ones, old_sums={"collision": ones / 2}, baselines=batch.rewards)
    assert OF_BATCHES[name](batch).advantages[:, 1].tolist() == [0.0] * len(episodes)


def test_the_rewards_of_four_equal_episodes_teach_nothing_in_any_convention() -> None:
    sums = [(0.3, 0.4, -0.2), (0.5,), (-0.8, -0.1, 0.7, 0.7), (0.6, -0.1)]
    batch = batch_of([rollout(len(turns), 0.5, token_rewards=turns) for turns in sums])
    assert batch.token_rewards.sum(1).tolist() != [0.5] * 4  # float32 rounds them
    assert group_standardised(rewards_of(batch), batch.group, eps=1e-9).eq(0).all()


def test_a_sum_that_is_not_the_rounding_of_the_reward_stands() -> None:
    batch = batch_of([rollout(2, 1.0, token_rewards=(0.25, 0.75)), rollout(1, 1000.0, token_rewards=(1000.0,))])
    changed = batch.with_(token_rewards=batch.token_rewards - 1e-3 * batch.loss_mask)
    assert rewards_of(changed).tolist() == pytest.approx([0.998, 999.999], rel=1e-7)
