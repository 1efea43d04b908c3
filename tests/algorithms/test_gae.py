"""Test generalised advantage estimation by hand, against its definition, and with tokens outside the loss mask."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toys import assert_close, batch_of, rollout

from outdo.algorithms.advantages import gae, generalised_advantages, returns_to_go, whitened
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.types import Batch, FinishReason, Rollout

HALVES = st.floats(0, 1)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def everywhere(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def advantages(rewards: Tensor, values: Tensor, mask: Tensor | None = None, end: float = 0.0, **options: Any) -> Tensor:
    after = torch.full((len(values),), end, dtype=torch.float64)
    return generalised_advantages(rewards, values, everywhere(values) if mask is None else mask, after, **options)


def valued(*members: list[Rollout], seed: int = 0) -> Batch:
    """Return a batch with rewards and made-up values in float64."""
    batch = batch_of(*members)
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(batch.token_ids.shape, generator=random, dtype=torch.float64)
    return batch.with_(rewards=batch.rewards.double(), values=values)


def test_gae_of_three_tokens_worked_out_by_hand() -> None:
    rewards, values = row(0, 0, 1), row(0.1, 0.2, 0.3)
    # deltas: .9 × .2 - .1 = .08, .9 × .3 - .2 = .07, 1 - .3 = .7; each advantage is its delta + .9 × .5 × the next.
    assert_close(advantages(rewards, values, gamma=0.9, lam=0.5), row(0.25325, 0.385, 0.7))


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    length = draw(st.integers(1, 7))
    numbers = st.lists(st.floats(-2, 2), min_size=length, max_size=length)
    mask = torch.tensor([draw(st.lists(st.booleans(), min_size=length, max_size=length))])
    return row(*draw(numbers)), row(*draw(numbers)), mask, draw(st.floats(-2, 2))


@given(rows(), HALVES, HALVES)
def test_gae_equals_its_defining_sum_over_the_trained_tokens(drawn, gamma: float, lam: float) -> None:
    rewards, values, mask, end = drawn
    steps = mask[0].nonzero().squeeze(1).tolist()
    following = [*(values[0, t].item() for t in steps[1:]), end]
    deltas = [rewards[0, t].item() + gamma * v - values[0, t].item() for t, v in zip(steps, following, strict=False)]
    expected = torch.zeros_like(values)
    for place, t in enumerate(steps):
        expected[0, t] = sum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(deltas[place:]))
    assert_close(advantages(rewards, values, mask, end, gamma=gamma, lam=lam), expected)


@given(rows(), HALVES)
def test_lambda_1_gives_return_minus_value_and_lambda_0_the_one_step_td_error(drawn, gamma: float) -> None:
    rewards, values, mask, _ = drawn
    expected = (returns_to_go(rewards, mask, gamma=gamma) - values).where(mask, 0.0)
    assert_close(advantages(rewards, values, mask, gamma=gamma, lam=1.0), expected)
    whole = everywhere(values)
    ahead = torch.cat([values[:, 1:], torch.zeros(1, 1)], 1)
    assert_close(advantages(rewards, values, whole, gamma=gamma, lam=0.0), rewards + gamma * ahead - values)


def test_over_turns_gamma_and_lambda_count_where_a_turn_ends() -> None:
    mask = torch.tensor([[True, True, False, True, True]])
    turn = torch.tensor([[0, 0, -1, 1, 1]])
    found = advantages(row(0, 1, 0, 0, 2), row(0.1, 0.2, 9, 0.3, 0.4), mask, gamma=0.9, lam=0.5, turn=turn)
    # deltas: .2 - .1 = .1, 1 + .9 × .3 - .2 = 1.07, .4 - .3 = .1, 2 - .4 = 1.6; .9 × .5 only after the first turn
    assert_close(found, row(0.1 + 1.07 + 0.45 * 1.7, 1.07 + 0.45 * 1.7, 0, 1.7, 1.6))


def test_turns_of_one_token_are_tokens() -> None:
    members = [rollout(5, 1.0, mask=[True, False, True, False, True]), rollout(1, 0.5)]
    batch, options = valued(members), {"gamma": 0.7, "lam": 0.6, "whiten": False}
    assert_close(gae(batch, turns=True, **options).returns, gae(batch, **options).returns)
    longer = valued([rollout(3, 1.0)])
    assert_close(
        gae(longer, turns=True, **options).advantages, gae(longer, gamma=1.0, lam=1.0, whiten=False).advantages
    )


def test_bootstrap_gives_a_truncated_answer_the_value_after_its_last_token_as_future_return() -> None:
    cut = rollout(2, 0.0, finish_reason=FinishReason.length)
    batch = valued([rollout(2, 0.0), cut]).with_(values=torch.full((2, 3), 0.5, dtype=torch.float64))
    batch = batch.with_(end_values=torch.tensor([9.0, 0.75], dtype=torch.float64))  # that of an ended answer is unused
    ended, open_ended = (gae(batch, lam=0.5, whiten=False, bootstrap=given).advantages for given in (False, True))
    assert ended.tolist() == [[0, -0.25, -0.5]] * 2
    # deltas: .5 - .5 = 0, and .75 - .5 = .25; the first advantage is 0 + .5 × .25
    assert open_ended.tolist() == [[0, -0.25, -0.5], [0, 0.125, 0.25]]


def test_bootstrap_computes_what_areal_computes() -> None:
    """AReaL's values are those after each token, its rewards and masks those of the next one; the last token of the
    second answer was written by a tool, and the value after it is the one to continue from."""
    gamma, lam = 0.9, 0.8
    cut = rollout(4, 1.0, mask=(True, False, True, False), finish_reason=FinishReason.length)
    batch = valued([rollout(4, 0.5), cut])
    after = torch.tensor([0.0, 0.3], dtype=torch.float64)
    states = torch.cat([batch.values[:, 1:], after[:, None]], 1)  # [B, T], V after token t
    trained = torch.cat([batch.loss_mask[:, 1:], torch.zeros(2, 1, dtype=torch.bool)], 1)
    earned = torch.zeros_like(states)
    earned[0, 3], earned[1, 2] = 0.5, 1.0
    later, ahead = torch.zeros(2, dtype=torch.float64), after
    expected = torch.zeros_like(states)
    for t in reversed(range(states.shape[1] - 1)):
        error = earned[:, t] + gamma * ahead - states[:, t]
        later = torch.where(trained[:, t], error + gamma * lam * later, later)
        ahead = torch.where(trained[:, t], states[:, t], ahead)
        expected[:, t + 1] = later
    found = gae(batch.with_(end_values=after), gamma=gamma, lam=lam, whiten=False, bootstrap=True).advantages
    assert_close(found[batch.loss_mask], expected[batch.loss_mask])


def test_bootstrap_requires_the_value_after_the_answer_only_where_it_is_switched_on() -> None:
    assert requirements_of(partial(gae, bootstrap=True)) == Requires(values=True, end_values=True)
    assert requirements_of(partial(gae, bootstrap=False, lam=0.5)) == Requires(values=True)
    with pytest.raises(ValueError, match=r"bootstrap needs `end_values`.*functools\.partial"):
        gae(valued([rollout(2, 1.0)]), bootstrap=True)


def test_returns_are_unwhitened_advantages_plus_values() -> None:
    batch = valued([rollout(3, 1.0), rollout(2, 0.0)])
    plain, white = gae(batch, whiten=False), gae(batch)
    assert_close(plain.returns, (plain.advantages + batch.values) * batch.loss_mask)
    assert_close(white.returns, plain.returns)
    assert_close(white.advantages, whitened(plain.advantages, batch.loss_mask))


def test_whitening_divides_by_n_minus_1_and_uses_only_trained_tokens() -> None:
    values, mask = row(1, torch.nan, 3, 5), torch.tensor([[True, False, True, True]])
    assert_close(whitened(values, mask), row(-1, 0, 0, 1), tolerance=1e-8)  # variance 4
    for equal in (row(0.1, 0.1, 0.1), row(7)):
        assert whitened(equal, everywhere(equal)).eq(0).all()


def test_whitening_with_ddof_0_divides_by_n_as_openrlhf_does() -> None:
    values, mask = row(1, torch.nan, 3, 5), torch.tensor([[True, False, True, True]])
    chosen = values[mask]
    centred = chosen - chosen.mean()
    theirs = centred * centred.square().mean().clamp(min=1e-8).rsqrt()
    assert_close(whitened(values, mask, ddof=0)[mask], theirs, tolerance=1e-8)
    assert_close(whitened(values, mask, ddof=0)[mask], row(-1, 0, 1)[0] * (3 / 2) ** 0.5, tolerance=1e-8)
    with pytest.raises(ValueError, match="ddof must be 0 or 1"):
        whitened(values, mask, ddof=2)


def test_gae_requires_values() -> None:
    assert requirements_of(gae) == Requires(values=True)
    with pytest.raises(ValueError, match="needs `values`"):
        gae(batch_of([rollout(2, 1.0)]))
    nothing = gae(batch_of([rollout(2, status="failed")]))  # a step without a trained token has no values
    assert nothing.advantages.eq(0).all()
