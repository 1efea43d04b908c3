"""Compare loss and gradient with TRL's GRPOTrainer for its other options, one at a time, for every kind of loss."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import rollout
from trl_cases import (
    GROUPS,
    KINDS,
    STANDARDISED,
    Case,
    Kind,
    assert_same,
    engine_options,
    engine_weight,
    inputs_of,
    loss_of,
    made_up,
    outdo,
    trainer_options,
    trl,
)

from outdo.algorithms.adaptive import AdaptiveBonus
from outdo.algorithms.advantages import chain, without_truncated
from outdo.algorithms.objectives import surrogates
from outdo.algorithms.objectives.batch_transforms import high_entropy
from outdo.algorithms.objectives.compat import compat
from outdo.algorithms.objectives.corrections import none, off_policy_rows, product
from outdo.algorithms.objectives.surrogates import Clip

pytestmark = pytest.mark.usefixtures("in_both_precisions")
EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.loss_type)
BY_LEVEL = pytest.mark.parametrize("level", ["token", "sequence"])
CLIPPED = [kind for kind in KINDS if isinstance(kind.objective.surrogate, Clip)]


def test_the_made_up_numbers_reach_every_branch() -> None:
    for extreme in (0.0, 15.0):
        case = made_up(extreme=extreme)
        batch = STANDARDISED(case.batch)
        ratio = (case.logprobs - batch.old_logprobs).exp()[batch.loss_mask]
        advantages = batch.advantages[batch.loss_mask]
        for good in (advantages > 0, advantages < 0):
            assert (ratio[good] < 0.8).any()
            assert ((ratio[good] > 0.8) & (ratio[good] < 1.2)).any()
            assert (ratio[good] > 1.2).any()
            if extreme:
                assert (ratio[good].log() > 14).any()
                assert (ratio[good].log() < -14).any()
        assert batch.totals.rows > batch.totals.sequences
        assert batch.advantages.eq(0).all(1)[batch.group == 1].all()


@EVERY
@BY_LEVEL
def test_tokens_forty_nats_away_match_trl(grpo_trainer: Any, kind: Kind, level: str) -> None:
    """TRL clamps neither log πθ - log π_ref nor log ρ, except to ±20 in VESPO."""
    case = made_up(extreme=40.0, reference=40.0)
    objective = kind.like_trl(level=level, beta=0.04, kl_ratio=False)
    options = kind.options(importance_sampling_level=level, beta=0.04, use_bias_correction_kl=False)
    assert_same(outdo(objective, case), trl(grpo_trainer, case, **options))


@EVERY
@BY_LEVEL
def test_a_first_pass_without_old_logprobs_matches_trl(grpo_trainer: Any, kind: Kind, level: str) -> None:
    case = made_up()
    first = replace(case, batch=case.batch.with_(old_logprobs=None))
    options = kind.options(importance_sampling_level=level, beta=0.04, use_bias_correction_kl=True, num_iterations=1)
    assert_same(outdo(kind.like_trl(level=level, beta=0.04), first), trl(grpo_trainer, case, **options))


@pytest.mark.parametrize("kind", CLIPPED, ids=lambda kind: kind.loss_type)
@BY_LEVEL
def test_asymmetric_clip_bounds_and_delta_match_trl(grpo_trainer: Any, kind: Kind, level: str) -> None:
    """`delta` caps the ratio if Â < 0: outdo's dual clip."""
    case = made_up(extreme=15.0)
    surrogate = surrogates.clip(low=0.1, high=0.4, dual=1.5)
    options = kind.options(importance_sampling_level=level, delta=1.5) | {"epsilon_low": 0.1, "epsilon_high": 0.4}
    assert_same(outdo(kind.like_trl(level=level, surrogate=surrogate), case), trl(grpo_trainer, case, **options))


@EVERY
@pytest.mark.parametrize("mode", [None, "token_truncate"])
def test_bad_off_policy_answers_are_masked(grpo_trainer: Any, kind: Kind, mode: str | None) -> None:
    """TRL compares with the log-probabilities of the engine, or with π_old if the engine reports none."""
    case = made_up()
    reported = mode is not None
    off = off_policy_rows(limit=0.05, by="rollout" if reported else "old")
    options = kind.options(off_policy_mask_threshold=0.05, beta=0.04, **(engine_options(mode) if mode else {}))
    weight = engine_weight(mode) if mode else none
    objective = kind.like_trl(engine=weight, beta=0.04)
    objective = replace(objective, correction=product(off, objective.correction))
    masked = trl(grpo_trainer, case, engine=reported, **options)
    assert_same(outdo(objective, case), masked)
    assert not masked[1].equal(trl(grpo_trainer, case, **options | {"off_policy_mask_threshold": None})[1])


@EVERY
@BY_LEVEL
def test_only_the_most_uncertain_tokens_are_trained(grpo_trainer: Any, kind: Kind, level: str) -> None:
    case = made_up()
    options = kind.options(importance_sampling_level=level, top_entropy_quantile=0.3, beta=0.04)
    objective = kind.like_trl(level=level, batch_transform=high_entropy(share=0.3), beta=0.04)
    assert_same(outdo(objective, case), trl(grpo_trainer, case, **options))


@EVERY
def test_the_entropy_bonus_is_a_mean_over_tokens(grpo_trainer: Any, kind: Kind) -> None:
    case = made_up()
    options = kind.options(entropy_coef=0.1, _entropy_bonus_enabled=True)
    expected = trl(grpo_trainer, case, **options)
    assert expected[2].any()
    assert_same(outdo(kind.like_trl(entropy_bonus=0.1), case), expected)


def test_an_adaptive_entropy_bonus_matches_trl(grpo_trainer: Any) -> None:
    """Run five steps of TRL's controller around its target. TRL adds no bonus before its first entropy measurement;
    this is switched off here, because outdo adds its bonus from the start."""
    grpo = KINDS[0]
    bonus = AdaptiveBonus(start=0.1, target=0.5, step=0.1, high=0.3)
    objective = grpo.like_trl(entropy_bonus=bonus)
    options = {"entropy_coef_delta": 0.1, "entropy_target": 0.5, "entropy_coef_max": 0.3, "entropy_coef_min": 0.0}
    options |= {"use_adaptive_entropy": True, "_entropy_bonus_enabled": True, "entropy_coef": 0.1}
    with trainer_options(grpo_trainer, **grpo.options(**options), _last_world_entropy=0.0, _entropy_window_stats=None):
        for scale in (0.4, 1.0, 1.5, 0.4, 0.4):
            case = made_up()
            case = replace(case, entropy=case.entropy * scale)
            expected = loss_of(grpo_trainer, case, inputs_of(grpo_trainer, case))
            assert_same(outdo(objective, case), expected)
            bonus.observe({"entropy": float(case.entropy[case.batch.loss_mask].mean())})
        assert float(bonus) == pytest.approx(grpo_trainer.entropy_coef)


def test_the_limits_of_vespos_w_match_trl(grpo_trainer: Any) -> None:
    """Every log ρ is clamped to ±20, engine weights and W to at least 1e-8. W^k is near 1 to make the limits visible.

    A good and a bad answer of two tokens each: 40 and -19.5 nats away from π_old; 18 and 0, one of them masked; -30
    and -30; and 0.5 and 0.2, with a weight of 2.
    """
    vespo, small = KINDS[-1], {"k_positive": 0.1, "k_negative": 0.05, "lambda_positive": 0.5}
    case = made_up([[rollout(2, 1.0), rollout(2, 0.0)]] * 4)
    assert vespo.loss_type == "vespo"
    old = torch.full_like(case.logprobs, -2.0)
    now, sampled = old.clone(), old.clone()
    for group, steps in enumerate(([40.0, -19.5], [18.0, 0.0], [-30.0, -30.0], [0.5, 0.2])):
        start = int(case.batch.prompt_lengths[2 * group])
        now[2 * group : 2 * group + 2, start : start + 2] += torch.tensor(steps)
    sampled[2:4, int(case.batch.prompt_lengths[2])] -= math.log(5)
    sampled[6:8, int(case.batch.prompt_lengths[6])] -= math.log(2)
    case = replace(case, logprobs=now, batch=case.batch.with_(old_logprobs=old, rollout_logprobs=sampled))
    named = {"vespo_k_pos": 0.1, "vespo_k_neg": 0.05, "vespo_lambda_pos": 0.5}
    expected = trl(grpo_trainer, case, **vespo.options(num_generations=2, **named, **engine_options("token_mask")))
    surrogate = surrogates.vespo(**small, engine=engine_weight("token_mask"))
    ours = outdo(replace(compat("trl", vespo.objective), surrogate=surrogate), case)
    assert_same(ours, expected)
    assert (expected[1].abs().amax(1) > 1e-5).all()  # no weight has vanished


def truncated_case(case: Case, trainer: Any, rows: tuple[int, ...]) -> Case:
    """Return the case with `rows` ending without an end-of-sequence token and all others with one."""
    ids, truncated = case.batch.token_ids.clone(), torch.zeros(len(case.batch), dtype=torch.bool)
    ids[torch.arange(len(ids)), case.batch.attention_mask.sum(1) - 1] = trainer.eos_token_ids[0]
    for row in rows:
        truncated[row] = True
        ids[row, case.batch.attention_mask[row].sum() - 1] = 10
    return replace(case, batch=case.batch.with_(token_ids=ids, truncated=truncated))


@EVERY
@BY_LEVEL
def test_truncated_answers_are_not_trained_on(grpo_trainer: Any, kind: Kind, level: str) -> None:
    assert 10 not in {*grpo_trainer.eos_token_ids, grpo_trainer._tokenizer.pad_token_id}
    case = truncated_case(made_up(), grpo_trainer, rows=(0, 9))
    options = kind.options(importance_sampling_level=level, mask_truncated_completions=True, beta=0.04)
    expected = trl(grpo_trainer, case, **options)
    assert not expected[1][[0, 9]].any()
    advantage = chain(STANDARDISED, without_truncated)
    assert_same(outdo(kind.like_trl(level=level, beta=0.04), case, advantage), expected)


def in_two_halves(trainer: Any, case: Case, **options: Any) -> list[Any]:
    """Sum TRL's losses and gradients over two micro-batches of one step."""
    half = len(case.batch) // 2
    with trainer_options(trainer, current_gradient_accumulation_steps=2, steps_per_generation=2, **options):
        whole = inputs_of(trainer, case)
        parts = []
        for rows in (slice(None, half), slice(half, None)):
            inputs = {name: value[rows] if value.dim() else value for name, value in whole.items()}
            part = replace(case, logprobs=case.logprobs[rows], entropy=case.entropy[rows])
            parts.append(loss_of(trainer, part, inputs))
    (loss, *gradients), (other, *others) = parts
    return [loss + other, *(torch.cat(pair) for pair in zip(gradients, others, strict=True))]


@EVERY
def test_a_step_in_two_micro_batches_matches_trl_except_for_bnpo(grpo_trainer: Any, kind: Kind) -> None:
    """Only TRL's BNPO averages over the tokens of a micro-batch, so it depends on how the step was split."""
    case = made_up()
    ours = outdo(kind.like_trl(beta=0.04), case)
    theirs = in_two_halves(grpo_trainer, case, **kind.options(beta=0.04))
    if kind.loss_type != "bnpo":
        assert_same(ours, tuple(theirs))
    else:
        with pytest.raises(AssertionError):
            assert_same(ours, tuple(theirs))


@EVERY
def test_a_preset_matches_trl_with_compat_and_without_it_if_no_answer_is_empty(grpo_trainer: Any, kind: Kind) -> None:
    level = "sequence" if kind.loss_type == "luspo" else "token"
    options = kind.options(importance_sampling_level=level)
    case = made_up()
    with_kl = replace(compat("trl", kind.objective), beta=0.04)
    assert_same(outdo(with_kl, case), trl(grpo_trainer, case, **options, beta=0.04))
    case = made_up([[each for each in group if each.loss_mask][:3] for group in GROUPS])
    assert_same(outdo(kind.objective, case), trl(grpo_trainer, case, **options, num_generations=3))
