"""Test the intended differences between outdo and TRL 1.16, with the factor between them if there is one."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import rollout
from trl_cases import (
    KINDS,
    STANDARDISED,
    Case,
    Outcome,
    assert_same,
    engine_options,
    engine_weight,
    inputs_of,
    loss_of,
    made_up,
    outdo,
    precision,
    trainer_options,
    trl,
    without_masks,
)

from outdo.algorithms.advantages import leave_one_out, per_token
from outdo.algorithms.objectives import presets, surrogates
from outdo.algorithms.objectives.batch_transforms import high_entropy
from outdo.algorithms.objectives.compat import compat
from outdo.algorithms.requirements import requirements_of, requires
from outdo.types import TokenScores

pytestmark = pytest.mark.usefixtures("in_float64")
KIND = {kind.loss_type: kind for kind in KINDS}
GRPO = KIND["grpo"]


def times(factor: float, outcome: Outcome) -> Outcome:
    loss, by_logprobs, by_entropy = outcome
    return factor * loss, factor * by_logprobs, factor * by_entropy


def assert_different(ours: Outcome, theirs: Outcome) -> None:
    """Assert that the gradients differ."""
    with pytest.raises(AssertionError):
        assert_same((ours[0] * 0, *ours[1:]), (theirs[0] * 0, *theirs[1:]))


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "sapo"])
def test_trl_counts_answers_without_a_trained_token(grpo_trainer: Any, loss_type: str) -> None:
    kind, case = KIND[loss_type], made_up()
    totals = case.batch.totals
    assert (totals.sequences, totals.rows) == (11, 12)
    assert_same(times(11 / 12, outdo(kind.objective, case)), trl(grpo_trainer, case, **kind.options()))


def test_trl_counts_answers_without_a_reward(grpo_trainer: Any) -> None:
    """In TRL they get Â = 0 and count in every mean; outdo does not train on them and leaves them out of every mean."""
    case, dapo = made_up(), KIND["dapo"]
    unscored = case.batch.scored.clone()
    unscored[5] = False
    rewards = [reward if there else None for reward, there in zip(case.batch.rewards.tolist(), unscored, strict=True)]
    with trainer_options(grpo_trainer, **dapo.options()):
        theirs = loss_of(grpo_trainer, case, inputs_of(grpo_trainer, case, rewards=[rewards]))
    batch = case.batch.with_(scored=unscored, loss_mask=case.batch.loss_mask & unscored[:, None]).recounted()
    ours = outdo(dapo.like_trl(), replace(case, batch=batch))
    assert_same(times(batch.totals.tokens / case.batch.totals.tokens, ours), theirs)


def test_the_default_cap_of_trls_cispo_scales_every_token_by_a_fifth(grpo_trainer: Any) -> None:
    """`epsilon_high` is the cap itself and 0.2 by default, so every ratio is capped."""
    case = made_up()
    assert ((case.logprobs - case.batch.old_logprobs)[case.batch.loss_mask] > math.log(0.2)).all()
    theirs = trl(grpo_trainer, case, loss_type="cispo")
    plain = replace(presets.cispo(), surrogate=surrogates.log_likelihood)
    assert_same(times(0.2, outdo(plain, case)), theirs)


def test_trls_luspo_equals_the_papers_only_with_the_sequence_level(grpo_trainer: Any) -> None:
    luspo, case = KIND["luspo"], made_up()
    ours = outdo(compat("trl", presets.luspo()), case)
    assert_same(ours, trl(grpo_trainer, case, **luspo.options(importance_sampling_level="sequence")))
    assert_different(ours, trl(grpo_trainer, case, **luspo.options()))


def test_trls_divergence_is_multiplied_by_the_ratio_by_default(grpo_trainer: Any) -> None:
    case = made_up([[rollout(3, 1.0), rollout(2, 0.0)], [rollout(1, 1.0), rollout(4, 0.0)]])
    options = GRPO.options(beta=0.04, num_generations=2)
    assert_different(outdo(presets.grpo(beta=0.04), case), trl(grpo_trainer, case, **options))
    assert_same(outdo(compat("trl", presets.grpo(beta=0.04)), case), trl(grpo_trainer, case, **options))


def test_trls_delta_and_clip_swap_roles_if_delta_is_the_lower(grpo_trainer: Any) -> None:
    """`delta` is a dual clip from 1 + `epsilon_high` on. Below, it bounds good tokens, and the clip bounds bad ones."""
    case, low = made_up(), 0.2
    theirs = trl(grpo_trainer, case, **GRPO.options(delta=1.1) | {"epsilon_high": 0.4})
    assert_different(outdo(GRPO.like_trl(surrogate=surrogates.clip(low=low, high=0.4, dual=1.1)), case), theirs)
    assert_same(outdo(GRPO.like_trl(surrogate=surrogates.clip(low=low, high=0.1, dual=1.4)), case), theirs)


def test_trls_engine_weight_may_exceed_e_to_20(grpo_trainer: Any) -> None:
    """This happens only without an upper bound."""
    case = one_token_case(engine=25.0)
    ours = outdo(GRPO.like_trl(engine=engine_weight("token_mask", 0.5, None)), case)
    theirs = trl(grpo_trainer, case, **GRPO.options(num_generations=2, **engine_options("token_mask", 0.5, None)))
    assert_same(times(math.exp(25 - 20), ours), theirs)


def test_trls_rloo_sequence_ratio_may_exceed_e_to_20(rloo_trainer: Any) -> None:
    """If Â < 0, TRL's gradient keeps growing, and so does outdo's in TRL's conventions."""
    case = without_masks(one_token_case(policy=25.0))
    ours = outdo(compat("trl", presets.rloo_clip()), case, per_token(leave_one_out))
    with trainer_options(rloo_trainer, beta=0.0, num_generations=2):
        inputs = inputs_of(rloo_trainer, case) | {"completion_mask": case.batch.loss_mask.long()}
        theirs = loss_of(rloo_trainer, case, inputs)
    assert ours[1][1].sum() == pytest.approx(math.exp(25) / 2)
    assert theirs[1][1].sum() == pytest.approx(math.exp(25) / 2)


def one_token_case(*, policy: float = 0.0, engine: float = 0.0) -> Case:
    """Return a good and a bad answer of one token each, `engine` nats likelier under π_old than under the engine; the
    bad one is also `policy` nats likelier under πθ than under π_old."""
    case = made_up([[rollout(1, 1.0), rollout(1, 0.0)]])
    mask, old = case.batch.loss_mask, -torch.ones_like(case.logprobs)
    batch = case.batch.with_(old_logprobs=old, rollout_logprobs=old - engine * mask)
    return replace(case, batch=batch, logprobs=old + torch.tensor([[0.0], [policy]]) * mask)


def test_trls_entropy_bonus_covers_only_the_uncertain_tokens_if_only_those_are_trained(grpo_trainer: Any) -> None:
    case = made_up()
    options = {"top_entropy_quantile": 0.3, "entropy_coef": 0.1, "_entropy_bonus_enabled": True}
    _, by_logprobs, by_entropy = outdo(GRPO.like_trl(batch_transform=high_entropy(share=0.3), entropy_bonus=0.1), case)
    _, *theirs = trl(grpo_trainer, case, **GRPO.options(**options))
    kept = theirs[1] != 0
    share = kept.sum() / case.batch.totals.tokens
    assert 0.2 < share < 0.4
    torch.testing.assert_close(theirs, [by_logprobs, by_entropy * kept / share], rtol=1e-9, atol=1e-12)


def test_trls_gmpo_counts_an_answer_without_tokens_in_the_loss_but_not_in_the_gradient(gmpo_trainer: Any) -> None:
    case = made_up()
    ours = outdo(compat("trl", presets.gmpo()), case)
    theirs = trl(gmpo_trainer, case, beta=0.0, epsilon_low=0.4, epsilon_high=0.4)
    batch = STANDARDISED(case.batch.with_(loss_mask=torch.ones_like(case.batch.loss_mask)))
    empty_answer_advantage = batch.advantages[3, 0]
    assert not case.batch.loss_mask[3].any()
    assert empty_answer_advantage < 0
    assert_same((ours[0] - empty_answer_advantage / 12, *ours[1:]), theirs)


def test_trl_rounds_the_temperatures_of_sapo_to_torchs_default_precision(grpo_trainer: Any) -> None:
    case = made_up()
    batch = STANDARDISED(case.batch)
    with precision(torch.float32), trainer_options(grpo_trainer, **KIND["sapo"].options()):
        inputs = inputs_of(grpo_trainer, case)  # TRL's lists become float32; `exact` restores the advantages
        exact = {"advantages": batch.advantages.amax(1) + batch.advantages.amin(1)}
        theirs = loss_of(grpo_trainer, case, inputs | exact)
    rounded = presets.sapo(tau_negative=float(torch.tensor(1.05, dtype=torch.float32)))
    assert_same(outdo(compat("trl", rounded), case), theirs)
    assert_different(outdo(compat("trl", presets.sapo()), case), theirs)


def test_an_engine_weight_is_part_of_the_w_of_vespo_only_if_passed_as_engine() -> None:
    """Two rows with W = 2 from the policy; the engine's weight is 1.5 for each of two tokens, or for the answer."""
    case = made_up([[rollout(2, 1.0), rollout(2, 0.0)]])
    old = torch.full_like(case.logprobs, -2.0)
    batch = STANDARDISED(
        case.batch.with_(old_logprobs=old, rollout_logprobs=old - math.log(1.5) * case.batch.loss_mask)
    )
    scores = TokenScores(logprobs=old + math.log(2) / 2)

    def loss(**surrogate: Any) -> float:
        objective = replace(presets.vespo(), surrogate=surrogates.vespo(**surrogate))
        return float(objective(scores, batch).loss)

    def by_hand(w: float) -> float:
        weights = {1: w**2 * math.exp(3 - 3 * w), -1: w**3 * math.exp(2 - 2 * w)}
        value = sum(weights[sign] * float(batch.advantages[row, 1]) for row, sign in enumerate((1, -1)))
        return -value * (-2 + math.log(2) / 2) / 2

    assert loss() == pytest.approx(by_hand(2.0))
    assert loss(engine=engine_weight("token_truncate")) == pytest.approx(by_hand(2 * 1.5**2))
    assert loss(engine=lambda logprobs, batch: torch.tensor([[1.5], [1.5]])) == pytest.approx(by_hand(2 * 1.5))
    assert loss(engine=lambda logprobs, batch: 1.5) == pytest.approx(by_hand(2 * 1.5))
    assert requirements_of(surrogates.vespo(engine=requires(values=True)(lambda logprobs, batch: 1.0))).values
    with pytest.raises(ValueError, match="engine must be a correction, made in Python, not 'truncate'"):
        loss(engine="truncate")
