"""Test the advantage estimators against numbers worked out by hand, and that ignored rollouts do not count."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from toys import assert_close, batch_of, groups, rollout

from outdo.algorithms.advantages import (
    Advantage,
    RewardAdvantage,
    baseline_first,
    batch_standardised,
    best_of_group,
    chain,
    distillation,
    gae,
    gdpo,
    gpg,
    group_centred,
    group_standardised,
    iw_opd,
    kl_penalty,
    leave_one_out,
    length_weighted,
    max_rl,
    mopd,
    optimal_token,
    pass_at_k,
    per_token,
    reinforce_pp,
    reinforce_pp_baseline,
    rejection,
    remax,
    reward,
    rewards_of,
    rlsd,
    sign,
    to_go,
    tree,
    turn_to_go,
    without_truncated,
)
from outdo.algorithms.objectives.divergences import k1
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.algorithms.vocabulary_sums import token_collision
from outdo.types import Batch, FinishReason, Rollout

RELATIVE: list[RewardAdvantage] = [
    group_standardised,
    group_centred,
    leave_one_out,
    batch_standardised,
    best_of_group,
    pass_at_k,
    max_rl,
    gpg,
    sign,
]
EVERY_RELATIVE = pytest.mark.parametrize("advantage", RELATIVE)
EVERY: dict[str, Advantage] = {each.__name__: per_token(each) for each in [*RELATIVE, reward]} | {
    "length_weighted": length_weighted,
    "gdpo": gdpo,
    "rejection": partial(rejection, threshold=1.0),
    "gae": gae,
    "optimal_token": optimal_token,
    "tree": tree,
    "turn_to_go": turn_to_go,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "distillation": distillation,
    "iw_opd": iw_opd,
    "mopd": mopd,
    "rlsd": rlsd,
    "kl_penalty": chain(kl_penalty(k1, beta=0.5), per_token(group_standardised)),
    "leave_one_out, whitened": per_token(partial(leave_one_out, whiten=True)),
    "best_of_group, scaled": per_token(partial(best_of_group, scale=True)),
    "gpg of nonzero rewards": per_token(partial(gpg, nonzero=True)),
    "kl_penalty after the baseline": chain(baseline_first(leave_one_out), kl_penalty(k1, beta=0.5), to_go),
    "kl_penalty per token": chain(kl_penalty(k1, beta=0.5), reinforce_pp),
    "without_truncated": chain(per_token(group_standardised), without_truncated),
}
EVERY_ADVANTAGE = pytest.mark.parametrize("advantage", EVERY.values(), ids=EVERY.keys())


def rewards(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_group(values: Tensor) -> Tensor:
    return torch.zeros(len(values), dtype=torch.int64)


def advantages_of(members: list[Rollout], advantage: RewardAdvantage = group_standardised) -> Tensor:
    filled = per_token(advantage)(batch_of(members)).advantages
    return filled


def test_eps_is_added_to_the_standard_deviation() -> None:
    values = rewards(0, 2, 4)  # σ = 2
    assert_close(group_standardised(values, one_group(values), eps=2.0), rewards(-0.5, 0, 0.5))
    assert_close(group_standardised(values, one_group(values)), rewards(-1, 0, 1) * 2 / (2 + 1e-6))


@pytest.mark.parametrize(
    "advantage",
    [group_standardised, batch_standardised, partial(leave_one_out, whiten=True), partial(best_of_group, scale=True)],
)
def test_without_eps_equal_rewards_and_a_group_of_one_get_advantage_0(advantage: Callable[..., Tensor]) -> None:
    assert advantage(rewards(1, 1, 3), torch.tensor([0, 0, 1]), eps=0.0).eq(0).all()
    assert advantage(rewards(1, 1, 1), torch.tensor([0, 0, 1]), eps=0.0).eq(0).all()
    assert_close(group_standardised(rewards(0, 2), torch.tensor([0, 0]), eps=0.0), rewards(-1, 1) / math.sqrt(2))


@EVERY_RELATIVE
def test_a_group_of_one_answer_gets_advantage_0(advantage: RewardAdvantage) -> None:
    assert advantage(rewards(3.7, 1, 0), torch.tensor([0, 1, 1]))[0] == 0


@EVERY_RELATIVE
def test_equal_rewards_get_advantages_of_exactly_0(advantage: RewardAdvantage) -> None:
    for size, value, dtype in product((3, 10), (0.1 + 0.2, -1 / 3, -1e30, 1e-30, 3e38), (torch.float32, torch.float64)):
        values = torch.full((size,), value, dtype=dtype)
        assert advantage(values, one_group(values)).eq(0).all(), (size, value, dtype)


@pytest.mark.parametrize("large", [1e10, 1e38])
def test_a_huge_reward_does_not_lose_the_precision_of_any_group(large: float) -> None:
    values = torch.tensor([large, 0, 0, large, 1, 0, 0, 1])
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    expected = 0.8660254 * torch.tensor([1.0, -1, -1, 1, 1, -1, -1, 1])
    assert_close(group_standardised(values, group), expected, tolerance=1e-5)
    assert_close(group_centred(values, group)[4:], torch.tensor([0.5, -0.5, -0.5, 0.5]))


@EVERY_RELATIVE
def test_a_rollout_without_a_reward_does_not_count_in_the_mean_or_deviation(advantage: RewardAdvantage) -> None:
    good, poor, bad = rollout(2, 1.0), rollout(2, 0.25), rollout(2, 0.0)
    failed = rollout(2, 0.0, status="failed")
    with_failed = advantages_of([good, failed, poor, bad, failed], advantage)
    assert with_failed[[1, 4]].eq(0).all()
    assert with_failed[[0, 2, 3]].equal(advantages_of([good, poor, bad], advantage))


def test_only_trained_tokens_get_the_advantage_of_their_rollout() -> None:
    advantages = advantages_of([rollout(3, 1.0, mask=(True, False, True)), rollout(1, 0.0)], group_centred)
    assert advantages.tolist() == [[0.0, 0.5, 0.0, 0.5], [0.0, -0.5, 0.0, 0.0]]


# ------------------------------------------------------------------------------------------ the other group estimators


def test_every_estimator_on_one_right_answer_in_four() -> None:
    values = rewards(1, 0, 0, 0)  # μ = 1/4, σ = 1/2
    group = one_group(values)
    assert_close(leave_one_out(values, group), rewards(1, -1 / 3, -1 / 3, -1 / 3))
    assert_close(best_of_group(values, group), rewards(1, 0, 0, 0))
    assert_close(max_rl(values, group), rewards(3, -1, -1, -1))
    assert_close(sign(values, group), rewards(1, -1, -1, -1))
    assert_close(sign(values, group, band=0.25), rewards(1, 0, 0, 0))
    assert_close(pass_at_k(values, group, k=2), rewards(2, 0, 0, 0))
    assert_close(reward(values, group), values)


def test_best_of_group_and_pass_at_2_on_two_right_answers_in_four() -> None:
    values = rewards(1, 1, 0, 0)
    assert best_of_group(values, one_group(values)).eq(0).all()
    # One of the three other answers is right; with probability 2/3 it is not the second answer drawn.
    assert_close(pass_at_k(values, one_group(values), k=2), rewards(4 / 3, 4 / 3, 0, 0))


def test_best_of_group_divides_by_sigma_as_verl_does_by_default() -> None:
    values = rewards(1, 0, 0, 0)  # σ = 1/2
    assert_close(best_of_group(values, one_group(values), scale=True, eps=0.0), rewards(2, 0, 0, 0))
    several, group = rewards(3, 1, 2, 5, 5, 7, 7), torch.tensor([0, 0, 0, 1, 1, 2, 3])  # σ = 1, 0, and groups of one
    expected = rewards(0.8, 0, 0, 0, 0, 0, 0)
    assert_close(best_of_group(several, group, scale=True, eps=0.25), expected)


def test_leave_one_out_is_whitened_over_the_batch() -> None:
    values, group = rewards(1, 0, 3, 1), torch.tensor([0, 0, 1, 1])  # 1, -1, 2, -2: deviation √(10/3)
    expected = rewards(1, -1, 2, -2) / (math.sqrt(10 / 3) + 0.5)
    assert_close(leave_one_out(values, group, whiten=True, eps=0.5), expected)
    equal = rewards(0.1, 0.1, 1, 0)
    assert leave_one_out(equal, group, whiten=True)[:2].eq(0).all()
    assert leave_one_out(rewards(0.1, 0.1, 0.7, 0.7), group, whiten=True).eq(0).all()


def test_gpg_counts_rewards_that_are_not_0_as_verl_does() -> None:
    values, group = rewards(1, 0, 0, 0, 2), torch.tensor([0, 0, 0, 0, 1])
    centred = rewards(0.75, -0.25, -0.25, -0.25, 0)
    assert_close(gpg(values, group), centred * 5 / 4)  # four answers in mixed groups
    assert_close(gpg(values, group, nonzero=True), centred * 5 / 2)
    assert_close(gpg(values[:4], group[:4], nonzero=True), centred[:4] * 4)
    assert gpg(torch.zeros(5, dtype=torch.float64), group, nonzero=True).eq(0).all()


def test_gpg_scales_up_for_groups_whose_rewards_are_all_equal() -> None:
    values, group = rewards(1, 0, 1, 1, 0, 0), torch.tensor([0, 0, 1, 1, 2, 2])
    assert_close(gpg(values, group), 3 * group_centred(values, group))


def test_the_optimal_token_baseline_by_hand() -> None:
    """Two answers of 2 and 1 tokens with the rewards 1 and 0, π = 1/2 and 1/4, 1/2, Σπ² = 1/2 everywhere."""
    batch = batch_of([rollout(2, 1.0), rollout(1, 0.0)])
    old = torch.tensor([[0, 0.5, 0.5], [0, 0.25, 0]], dtype=torch.float64).log()
    batch = batch.with_(
        old_logprobs=old, old_sums={"collision": torch.full_like(old, 0.5)}, rewards=batch.rewards.double()
    )
    # W: .5 and 1 - .5 + .5 = 1 for the first tokens; B = (1 × .5 + 0 × 1) / 1.5 = 1/3. The second token is alone.
    assert_close(filled(batch, optimal_token)[batch.loss_mask], rewards(2 / 3, 1, -1 / 3))
    without = partial(optimal_token, zero_tail=False)
    assert_close(filled(batch, without)[batch.loss_mask], rewards(2 / 3, 0, -1 / 3))
    assert requirements_of(without) == Requires(old_logprobs=True, old_sums={"collision": token_collision})


def test_rounding_cannot_move_the_optimal_token_baseline_beyond_the_returns() -> None:
    """Σπ² comes from another forward pass than π: in bfloat16 it may be below π²."""
    batch = batch_of([rollout(1, 1.0), rollout(1, 0.0)])
    old = torch.tensor([[0, 0.99], [0, 0.98]], dtype=torch.float64).log()
    collision = torch.tensor([[0, 0.9785], [0, 0.9616]], dtype=torch.float64)  # 1 - 2π + Σπ²: -0.0015 and 0.0016
    batch = batch.with_(old_logprobs=old, old_sums={"collision": collision}, rewards=batch.rewards.double())
    assert_close(filled(batch, optimal_token)[batch.loss_mask], rewards(16 / 17, -1 / 17))


@pytest.mark.parametrize("zero_tail", [True, False])
def test_the_optimal_token_baseline_equals_verls_loops(zero_tail: bool) -> None:
    members = [
        [rollout(4, 1.0), rollout(2, 0.0), rollout(5, 0.5, mask=(True, False, True, True, False))],
        [rollout(3, 0.0), rollout(3, 2.0), rollout(1, 1.0)],
    ]
    batch = complete(members)
    batch = batch.with_(old_logprobs=-batch.old_logprobs.abs())
    expected = torch.zeros_like(batch.old_logprobs)
    for group in (0, 1):
        rows = (batch.group == group).nonzero().squeeze(1).tolist()
        places = {i: batch.loss_mask[i].nonzero().squeeze(1).tolist() for i in rows}
        paths: dict[int, list[float]] = {}
        for i in rows:
            terms = [
                float(1 - 2 * batch.old_logprobs[i, t].exp() + batch.old_sums["collision"][i, t]) for t in places[i]
            ]
            paths[i] = [sum(terms[: k + 1]) for k in range(len(terms))]
        for i in rows:
            for k, t in enumerate(places[i]):
                others = [j for j in rows if k < len(places[j])]
                baseline = sum(float(batch.rewards[j]) * paths[j][k] for j in others)
                baseline /= sum(paths[j][k] for j in others) + 1e-8
                alone = zero_tail and len(others) == 1
                expected[i, t] = batch.rewards[i] - (0 if alone else baseline)
    assert_close(filled(batch, partial(optimal_token, zero_tail=zero_tail)), expected, tolerance=1e-6)


def test_batch_standardised_divides_by_the_deviation_of_all_raw_rewards() -> None:
    values, group = rewards(0, 2, 4, 6), torch.tensor([0, 0, 1, 1])
    deviation = math.sqrt(20 / 3)
    assert_close(batch_standardised(values, group, eps=0.5), rewards(-1, 1, -1, 1) / (deviation + 0.5))


def test_sign_treats_a_rounding_error_as_equality() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 100.1, 100.2, 100.3])
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    assert sign(values, group).tolist() == [-1, 0, 1, -1, 0, 1]


def test_max_rl_is_0_where_the_mean_reward_is_not_above_0() -> None:
    values = rewards(-1, 1, -2, 1)
    assert max_rl(values, torch.tensor([0, 0, 1, 1])).eq(0).all()


def expected_gradient(advantage: RewardAdvantage, p: float, answers: int) -> float:
    """Return E[mean of Â · ∂ log p(answer) / ∂θ] over all groups of answers, each right with p = sigmoid(θ)."""
    total = 0.0
    for outcome in product([0.0, 1.0], repeat=answers):
        values = rewards(*outcome)
        scores = values - p  # ∂ log p / ∂θ: 1 - p if right, -p if wrong
        weight = math.prod(p if right else 1 - p for right in outcome)
        total += weight * (advantage(values, one_group(values)) * scores).mean().item()
    return total


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_expected_gradient_of_each_estimator(p: float) -> None:
    """Enumerate all groups of five answers exactly."""
    slope = p * (1 - p)  # ∂p / ∂θ
    assert_close(expected_gradient(reward, p, 5), slope)
    assert_close(expected_gradient(leave_one_out, p, 5), slope)
    assert_close(expected_gradient(group_centred, p, 5), slope * 4 / 5)
    for k in (2, 3, 5):  # pass@k = 1 - (1 - p)^k
        gradient = expected_gradient(lambda values, group, k=k: pass_at_k(values, group, k=k), p, 5)
        assert_close(gradient, k * (1 - p) ** (k - 1) * slope)
    assert_close(expected_gradient(max_rl, p, 5), sum((1 - p) ** k for k in range(4)) * slope)


def test_pass_at_1_is_refused_and_a_group_smaller_than_k_gets_0() -> None:
    values = rewards(1, 0)
    with pytest.raises(ValueError, match="take leave_one_out"):
        pass_at_k(values, one_group(values), k=1)
    assert pass_at_k(values, one_group(values), k=3).eq(0).all()


# ------------------------------------------------------------------------------------------ advantages of whole batches


def filled(batch: Batch, advantage: Advantage) -> Tensor:
    advantages = advantage(batch).advantages
    return advantages


def test_the_baseline_of_opo_weights_rewards_by_length() -> None:
    batch = batch_of([rollout(1, 1.0), rollout(3, 0.0), rollout(4, 0.0, status="failed")])
    assert filled(batch, length_weighted).tolist() == [[0, 0.75, 0, 0, 0], [0, *[-0.25] * 3, 0], [0] * 5]


def test_gdpo_standardises_every_reward_part_before_it_adds_them_up() -> None:
    def answer(right: float, style: float | None, status: str = "ok") -> Rollout:
        return rollout(1, right, reward_parts={"right": right, "style": style}, status=status)

    batch = batch_of([answer(1, 0.0), answer(0, 100.0), answer(0, None), answer(9, 9.0, "failed")])
    right, style = group_standardised(rewards(1, 0, 0), one_group(rewards(1, 0, 0)), eps=0.0), rewards(-1, 1, 0)
    sums = right + 2 * style / math.sqrt(2)
    expected = group_standardised(sums, one_group(sums), eps=0.0)
    weighted = filled(batch, lambda batch: gdpo(batch, weights={"right": 1.0, "style": 2.0}, eps=0.0))[:, 1]
    assert_close(weighted, torch.cat([expected, rewards(0)]).float(), tolerance=1e-6)


def test_gdpo_refuses_inputs_that_it_would_ignore() -> None:
    parts = batch_of([rollout(1, 1.0, reward_parts={"right": 1.0})])
    with pytest.raises(ValueError, match="no weight for right"):
        gdpo(parts, weights={"wrong": 1.0})
    with pytest.raises(ValueError, match="rewards of single turns or tokens"):
        gdpo(parts.with_(token_rewards=parts.rollout_logprobs))
    with pytest.raises(ValueError, match="the batch has none"):
        gdpo(batch_of([rollout(1, 1.0)]))


def test_remax_subtracts_the_reward_of_the_greedy_answer() -> None:
    batch = batch_of([rollout(2, 1.0, mask=(True, False)), rollout(1, 0.0)]).with_(baselines=torch.tensor([0.25, 0.25]))
    assert filled(batch, remax).tolist() == [[0, 0.75, 0], [0, -0.25, 0]]
    with pytest.raises(ValueError, match="needs `baselines`"):
        remax(batch_of([rollout(2, 1.0)]))


def test_reinforce_pp_whitens_over_tokens() -> None:
    batch = batch_of([rollout(1, 1.0), rollout(3, 0.0)])  # mean 1/4, variance 1/4
    expected = torch.tensor([[0, 1.5, 0, 0], [0, -0.5, -0.5, -0.5]])
    assert_close(filled(batch, reinforce_pp), expected, tolerance=1e-6)
    assert_close(filled(batch, reinforce_pp_baseline), expected, tolerance=1e-6)  # subtracting a constant: no change
    discounted = filled(batch_of([rollout(3, 1.0)]), lambda batch: reinforce_pp(batch, gamma=0.5))
    assert_close(discounted[0, 1:], torch.tensor([-4.0, -1, 5]) / math.sqrt(21), tolerance=1e-6)  # whitened 1/4, 1/2, 1


def test_distillation_advantages_are_the_log_ratio_of_teacher_to_policy() -> None:
    batch = batch_of([rollout(2)]).with_(
        teacher_logprobs=torch.full((1, 3), -1.0), old_logprobs=torch.tensor([[0, -3, -0.5]])
    )
    assert filled(batch, distillation).tolist() == [[0, 2, -0.5]]
    assert requirements_of(distillation) == Requires(teacher=True, old_logprobs=True)


def taught(*deltas: float) -> Batch:
    """A right and a wrong answer; in both, the teacher's log-probabilities are above the policy's by `deltas`."""
    batch = batch_of([rollout(len(deltas), 1.0), rollout(len(deltas), 0.0)])
    old = torch.full(batch.token_ids.shape, -2.0, dtype=torch.float64)
    delta = torch.zeros_like(old).masked_scatter(batch.loss_mask, torch.tensor(deltas, dtype=torch.float64).repeat(2))
    return batch.with_(old_logprobs=old, teacher_logprobs=old + delta, rewards=batch.rewards.double())


def test_mopd_adds_the_advantage_of_the_reward_to_that_of_the_teacher() -> None:
    batch = taught(0.5, -1.0)
    outcome = filled(batch, per_token(group_standardised))
    assert_close(filled(batch, partial(mopd, alpha=0.3)), filled(batch, distillation) + 0.3 * outcome)
    assert_close(filled(batch, partial(mopd, alpha=0.0)), filled(batch, distillation))


def test_iw_opd_counts_a_token_less_the_more_of_the_distance_is_before_it() -> None:
    batch = taught(1.0, -2.0, 1.0)
    # Of |δ| = 1, 2, 1 there are 0, 1/4 and 3/4 before a token: its weight is 1 + γ times 1, 3/4, 1/4.
    expected = torch.tensor([1.5 * 1.0, 1.375 * -2.0, 1.125 * 1.0], dtype=torch.float64)
    assert_close(filled(batch, iw_opd)[0][batch.loss_mask[0]], expected)
    assert_close(filled(batch, partial(iw_opd, gamma=0.0)), filled(batch, distillation))
    with pytest.raises(ValueError, match=r"iw_opd: gamma must be a number from 0, not -1.0"):
        iw_opd(batch, gamma=-1.0)
    agreeing = batch.with_(teacher_logprobs=batch.old_logprobs)
    assert not filled(agreeing, iw_opd).any()


def test_rlsd_divides_the_advantage_of_the_reward_among_the_tokens() -> None:
    batch = taught(0.1, -0.1, 3.0)
    outcome = filled(batch, per_token(group_standardised))
    weights = filled(batch, rlsd)[batch.loss_mask] / outcome[batch.loss_mask]
    right = torch.tensor([math.exp(0.1), math.exp(-0.1), 1.2], dtype=torch.float64)
    wrong = torch.tensor([math.exp(-0.1), math.exp(0.1), 0.8], dtype=torch.float64)
    assert_close(weights, 0.5 + 0.5 * torch.cat([right, wrong]))
    assert (filled(batch, partial(rlsd, lam=1.0, clip=1.0))[batch.loss_mask] * outcome[batch.loss_mask] >= 0).all()
    assert_close(filled(batch, partial(rlsd, lam=0.0)), outcome)
    with pytest.raises(ValueError, match=r"lam and clip must be from 0 to 1, not 2.0 and 0.2"):
        rlsd(batch, lam=2.0)


def test_rejection_trains_only_on_the_right_answers() -> None:
    # the answer with the highest reward is wrong, and the last one has no verdict
    good, bad = rollout(3, 0.2, right=True), rollout(2, 1.1, right=False)
    batch = rejection(batch_of([good, bad], [rollout(1, 0.0, right=True), rollout(2, 2.0)]))
    assert batch.loss_mask.any(1).tolist() == [True, False, True, False]
    assert batch.totals.tokens == 4


def test_rejection_without_verdicts_needs_a_threshold() -> None:
    batch = batch_of([rollout(3, 1.0), rollout(2, 0.5)])
    with pytest.raises(ValueError, match=r"not defined which answers are right.*eval\.right.*threshold"):
        rejection(batch)


def test_pass_at_k_counts_right_answers_where_a_batch_has_verdicts() -> None:
    sums = [(1.1, True), (1.0, False), (0.1, False), (0.1, False)]  # accuracy + 0.1 format; the second is a wrong sum
    batch = batch_of([rollout(1, reward, right=right) for reward, right in sums])
    counted = per_token(partial(pass_at_k, k=2))(batch).advantages
    binary = per_token(partial(pass_at_k, k=2))(batch_of([rollout(1, float(right)) for _, right in sums])).advantages
    assert counted.equal(binary)


def test_rejection_with_a_threshold_trains_only_on_the_good_answers() -> None:
    given = batch_of([rollout(3, 1 - 1e-7), rollout(2, 0.5)], [rollout(1, 0.0), rollout(2, 2.0)])
    batch = rejection(given, threshold=1.0)
    assert batch.advantages.equal(batch.loss_mask.float())
    assert batch.loss_mask.any(1).tolist() == [True, False, False, True]
    assert (batch.totals.tokens, batch.totals.sequences, batch.totals.groups, batch.totals.rows) == (5, 2, 2, 4)


# --------------------------------------------------------------------------------------------------- steps of a chain


def test_the_kl_penalty_is_subtracted_at_every_trained_token_and_the_reward_added_at_the_last() -> None:
    batch = batch_of([rollout(3, 1.0, mask=(True, False, True)), rollout(0, 0.5)])
    batch = batch.with_(old_logprobs=torch.full((2, 4), -1.0), ref_logprobs=torch.full((2, 4), -3.0))
    penalised = kl_penalty(k1, beta=0.25)(batch)
    assert penalised.token_rewards.tolist() == [[0, -0.5, 0, 0.5], [0] * 4]
    assert rewards_of(penalised).tolist() == [0, 0.5]  # the empty answer has no token and keeps its reward
    assert filled(penalised, per_token(reward))[0].tolist() == [0, 0, 0, 0]
    assert batch.rewards.tolist() == penalised.rewards.tolist() == [1, 0.5]


@pytest.mark.parametrize("estimator", [leave_one_out, group_centred, group_standardised])
def test_the_kl_can_be_subtracted_after_the_baseline_as_openrlhf_does(estimator: RewardAdvantage) -> None:
    """The penalties of the other answers are in no mean and no deviation: each token loses those from it on."""
    batch = complete([[rollout(3, 1.0, mask=(True, False, True)), rollout(2, 0.0)], [rollout(1, 1.0), rollout(2, 0.5)]])
    penalty = 0.25 * (batch.old_logprobs - batch.ref_logprobs).where(batch.loss_mask, 0.0)
    to_come = penalty.flip(1).cumsum(1).flip(1)
    rows = estimator(batch.rewards, batch.group)[:, None]
    expected = (rows - to_come).where(batch.loss_mask, 0.0)
    found = chain(baseline_first(estimator), kl_penalty(k1, beta=0.25), to_go)(batch)
    assert_close(found.advantages, expected)
    assert found.rewards.equal(batch.rewards)
    before = filled(batch, chain(kl_penalty(k1, beta=0.25), per_token(estimator)))
    assert not torch.isclose(before[0, 1], expected[0, 1])


def test_the_reinforce_baseline_of_openrlhf_is_a_chain() -> None:
    """r - μ, minus the penalties to come, then whitened with the divisor N."""
    batch = complete([[rollout(3, 1.0), rollout(2, 0.0)], [rollout(1, 1.0), rollout(2, 0.5)]])
    mask = batch.loss_mask
    penalty = 0.25 * (batch.old_logprobs - batch.ref_logprobs).where(mask, 0.0)
    plain = (group_centred(batch.rewards, batch.group)[:, None] - penalty.flip(1).cumsum(1).flip(1))[mask]
    whitening = partial(reinforce_pp, ddof=0)
    found = filled(batch, chain(baseline_first(group_centred), kl_penalty(k1, beta=0.25), whitening))[mask]
    centred = plain - plain.mean()
    assert_close(found, centred / centred.square().mean().clamp(min=1e-8).sqrt(), tolerance=1e-7)


def test_a_chain_requires_what_its_steps_require() -> None:
    assert requirements_of(chain(kl_penalty(k1, beta=1), gae)) == Requires(
        reference=True, old_logprobs=True, values=True
    )
    assert requirements_of(chain(per_token(reward), without_truncated)) == Requires()


def test_truncated_answers_count_in_the_mean_reward_but_are_not_trained_on() -> None:
    cut = rollout(2, 0.0, finish_reason=FinishReason.length)
    batch = chain(per_token(group_centred), without_truncated)(batch_of([rollout(2, 1.0), cut]))
    assert batch.advantages.tolist() == [[0, 0.5, 0.5], [0, 0, 0]]
    assert batch.loss_mask.any(1).tolist() == [True, False]
    assert (batch.totals.tokens, batch.totals.sequences, batch.totals.rows) == (2, 1, 2)
    with pytest.raises(ValueError, match="after the advantage"):
        without_truncated(batch_of([cut]))


# ---------------------------------------------------------------------------------------- properties of every estimator


def complete(members: list[list[Rollout]]) -> Batch:
    """Return a float64 batch with made-up values for everything required; every third answer is truncated."""
    batch = batch_of(*members)
    random = torch.Generator().manual_seed(len(batch))

    def noise() -> Tensor:
        return torch.randn(batch.token_ids.shape, generator=random, dtype=torch.float64)

    parts = torch.rand(len(batch), generator=random, dtype=torch.float64)
    numbers = torch.arange(len(batch))
    return batch.with_(
        rewards=batch.rewards.double(),
        truncated=numbers % 3 == 2,
        baselines=parts.round(),
        reward_parts={"a": batch.rewards.double(), "b": parts.where(numbers % 4 != 1, torch.nan)},
        old_logprobs=noise(),
        old_sums={"collision": noise().abs() + 1.0},
        ref_logprobs=noise(),
        teacher_logprobs=noise(),
        values=noise(),
    )


def filled_outside_mask(batch: Batch, fill: float, columns: int = 0) -> Batch:
    """Write `fill` into all per-token numbers outside `loss_mask`, and append `columns` more columns of it."""
    names = ("old_logprobs", "ref_logprobs", "teacher_logprobs", "values", "rollout_logprobs")

    def wide(values: Tensor) -> Tensor:
        return pad(values.where(batch.loss_mask, fill), (0, columns), value=fill)

    numbers = {name: wide(getattr(batch, name)) for name in names}
    sums = {name: wide(values) for name, values in batch.old_sums.items()}
    masks = {name: pad(getattr(batch, name), (0, columns)) for name in ("token_ids", "attention_mask", "loss_mask")}
    return batch.with_(**numbers, **masks, old_sums=sums, turn=pad(batch.turn, (0, columns), value=-1))


@EVERY_ADVANTAGE
@settings(max_examples=8)
@given(members=groups())
def test_values_outside_the_loss_mask_do_not_matter(advantage: Advantage, members: list[list[Rollout]]) -> None:
    batch = complete(members)
    expected = filled(batch, advantage)
    assert expected.isfinite().all()
    assert expected[~batch.loss_mask].eq(0).all()
    assert_close(filled(filled_outside_mask(batch, torch.nan, columns=2), advantage), pad(expected, (0, 2)))


@EVERY_ADVANTAGE
@settings(max_examples=8)
@given(members=groups(), seed=st.integers(0, 9))
def test_the_order_of_the_rows_does_not_matter(advantage: Advantage, members: list[list[Rollout]], seed: int) -> None:
    batch = complete(members)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    assert_close(filled(batch.rows(order), advantage), filled(batch, advantage)[order], tolerance=1e-9)


@EVERY_ADVANTAGE
def test_an_empty_batch_is_accepted(advantage: Advantage) -> None:
    assert filled(batch_of(), advantage).shape == (0, 1)
    assert filled(batch_of([rollout(2, status="failed")]).with_(baselines=torch.zeros(1)), advantage).eq(0).all()
