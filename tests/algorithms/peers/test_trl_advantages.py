"""Compare advantages with TRL 1.16: for one reward, for several, and for answers without a reward."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from trl_cases import EPS, STANDARDISED, inputs_of, made_up, trainer_options, without_masks

from outdo.algorithms.advantages import (
    Advantage,
    batch_standardised,
    chain,
    gdpo,
    group_centred,
    kl_penalty,
    leave_one_out,
    per_token,
)
from outdo.algorithms.objectives.divergences import k1
from outdo.types import Batch

pytestmark = pytest.mark.usefixtures("in_both_precisions")
Rewards = Sequence[float | None]

ONE = [1.3, 0.0, 0.5, 0.25, 0.1, 0.1, 0.1, 0.1, 0.0, 1.0, -2.0, 7.0]  # the second group has equal rewards
OTHER = [30.0, 10.0, 0.0, 0.0, 5.0, 0.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0]


def without(rewards: Rewards, *rows: int) -> Rewards:
    """Return the rewards with those of some rows removed."""
    return [None if row in rows else reward for row, reward in enumerate(rewards)]


GAPS: Mapping[str, Rewards] = {
    "all": ONE,
    "two missing": without(ONE, 1, 6),
    "one left of a group": without(ONE, 0, 1, 2, 9),
}
SCALES: Mapping[str, Advantage] = {
    "group": STANDARDISED,
    "batch": per_token(batch_standardised),
    "none": per_token(group_centred),
}


def rewarded(batch: Batch, *columns: Rewards, weights: Sequence[float] = (1.0,)) -> Batch:
    """Return the batch with several rewards (float32, as in TRL): their weighted sum, and each as a reward part."""
    parts = torch.tensor([[torch.nan if each is None else each for each in column] for column in columns]).float()
    parts = parts.to(torch.get_default_dtype())
    scored = ~parts.isnan().all(0)
    return batch.with_(
        rewards=(torch.tensor(weights)[:, None] * parts).nansum(0),
        scored=scored,
        loss_mask=batch.loss_mask & scored[:, None],
        reward_parts={str(number): part for number, part in enumerate(parts)},
    )


def assert_advantages(advantage: Advantage, batch: Batch, expected: Tensor) -> None:
    """Assert equality on all rows that have a token; TRL's masks drop its values for the others."""
    advantages = advantage(batch).advantages
    dtype = torch.get_default_dtype()
    assert expected.dtype == dtype
    assert expected[~batch.scored].eq(0).all()
    has_token = batch.loss_mask.any(1)
    rows = advantages.amax(1) + advantages.amin(1)  # 0 and the advantage of the row
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-9, 1e-12)
    torch.testing.assert_close(rows[has_token], expected[has_token], rtol=rtol, atol=atol)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rewards", GAPS.values(), ids=GAPS)
def test_advantages_of_one_reward_equal_trls(grpo_trainer: Any, scale: str, rewards: Rewards) -> None:
    case = made_up()
    with trainer_options(grpo_trainer, scale_rewards=scale):
        expected = inputs_of(grpo_trainer, case, rewards=[rewards])["advantages"]
    assert_advantages(SCALES[scale], rewarded(case.batch, rewards), expected)


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize(
    "columns",
    [(ONE, OTHER), (without(ONE, 2, 3), OTHER), (without(ONE, 4, 11), without(OTHER, 0, 5, 11))],
    ids=["all", "a part missing", "an answer without any"],
)
def test_advantages_of_two_rewards_equal_trls(
    grpo_trainer: Any, aggregation: str, columns: tuple[Rewards, Rewards]
) -> None:
    """Sum the rewards before standardisation, or standardise each one separately (GDPO)."""
    case, weights = made_up(), (1.0, 0.25)
    options = {"multi_objective_aggregation": aggregation, "reward_weights": torch.tensor(weights)}
    with trainer_options(grpo_trainer, **options):
        expected = inputs_of(grpo_trainer, case, rewards=columns)["advantages"]
    batch = rewarded(case.batch, *columns, weights=weights)
    by_part = dict(zip(batch.reward_parts, weights, strict=True))
    ours = {"sum_then_normalize": STANDARDISED, "normalize_then_sum": lambda batch: gdpo(batch, weights=by_part)}
    assert_advantages(ours[aggregation], batch, expected)


# ------------------------------------------------------------------------------------------------------------- RLOO


@pytest.mark.parametrize("rewards", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("whiten", [False, True])
def test_leave_one_out_advantages_equal_trls(rloo_trainer: Any, rewards: Rewards, beta: float, whiten: bool) -> None:
    """RLOO subtracts the KL from the reward."""
    case = without_masks(made_up())
    estimator = per_token(partial(leave_one_out, whiten=whiten, eps=EPS))
    advantage = chain(kl_penalty(k1, beta=beta), estimator) if beta else estimator
    with trainer_options(rloo_trainer, beta=beta, normalize_advantages=whiten):
        expected = inputs_of(rloo_trainer, case, rewards=[rewards])["advantages"]
    assert_advantages(advantage, rewarded(case.batch, rewards), expected)
