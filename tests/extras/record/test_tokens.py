"""The record of every token: what is known of it, and the word for what the objective did with it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from record_cases import groups_of, one_group, one_pass, rollout, step_of
from torch import Tensor

from outdo.algorithms.advantages import group_standardised, per_token, without_truncated
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.objectives.corrections import mask
from outdo.algorithms.objectives.presets import dro, gspo, ppo
from outdo.extras.record.bounds import policy_push
from outdo.extras.record.tokens import CLIP, TokenRecord, net_pushes, token_record
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason, Group, Rollout, Step, Update

HIGH, LOW = math.log(1.3), math.log(0.7)


def words(record: TokenRecord) -> list[list[str]]:
    """How each token after the prompt, which has one token, was clipped."""
    return [[CLIP[code] for code in row[1:]] for row in record.clip.tolist()]


def judged(*answers: Rollout, advantages: Sequence[float], old: float = 0.5) -> tuple[list[Group], Batch]:
    """One group, Â of each answer, and π_old of every token."""
    groups = groups_of(answers)
    batch = Batch.from_groups(groups)
    values = torch.tensor(advantages)[:, None] * batch.loss_mask
    return groups, batch.with_(advantages=values, old_logprobs=math.log(old) * batch.loss_mask)


def record_of(groups: list[Group], batch: Batch, objective: Objective, *moves: float) -> TokenRecord:
    """After passes that found every token this many nats from π_old."""
    batch = objective.prepare(batch)
    assert batch.old_logprobs is not None
    passes = [one_pass(objective, batch, batch.old_logprobs + move * batch.loss_mask) for move in moves]
    return token_record(step_of(groups, batch, *passes), objective, None)


# -------------------------------------------------------------------------------------------------- in one word


@pytest.mark.parametrize(
    ("advantage", "moves", "word"),
    [
        (1.0, [0.0], "free"),
        (-1.0, [0.0, -0.1], "free"),
        (-1.0, [0.0, HIGH], "free"),  # it went the wrong way, and is pushed as ever
        (1.0, [0.0, HIGH], "high"),
        (1.0, [HIGH, 0.1], "free"),  # as the last pass found it
        (1.0, [HIGH, HIGH], "high"),  # past its bound before a minibatch came to it: not spared
        (-1.0, [0.0, LOW], "low"),
        (0.0, [0.0, HIGH], "neutral"),
    ],
)
def test_the_clip_state_of_a_token(advantage, moves, word):
    groups, batch = judged(rollout(2), advantages=[advantage])
    assert words(record_of(groups, batch, ppo(), *moves)) == [[word] * 2]


def test_a_token_that_is_pushed_back_is_beyond_its_bound():
    groups, batch = judged(rollout(1), rollout(1), advantages=[0.1, -0.1], old=0.2)
    assert words(record_of(groups, batch, dro(), 0.0, 0.9)) == [["free"], ["free"]]
    assert words(record_of(groups, batch, dro(), 0.0, 1.1)) == [["high"], ["free"]]
    assert words(record_of(groups, batch, dro(), 0.0, -1.1)) == [["free"], ["low"]]


def test_a_token_whose_bound_is_beyond_probability_one_is_unreachable():
    groups, batch = judged(rollout(1), rollout(1), advantages=[1.0, -1.0], old=0.84)
    assert words(record_of(groups, batch, ppo(), 0.0)) == [["unreachable"], ["free"]]
    groups, batch = judged(rollout(1), advantages=[1.0], old=0.83)
    assert words(record_of(groups, batch, ppo(), 0.0)) == [["free"]]


def test_a_clipped_answer_clips_tokens_with_unreachable_bounds():
    groups, batch = judged(rollout(1), advantages=[1.0], old=1 - 1e-4)
    assert words(record_of(groups, batch, gspo(), 0.0)) == [["unreachable"]]
    assert words(record_of(groups, batch, gspo(), 0.0, 1e-3)) == [["high"]]


def test_tokens_dropped_by_a_correction_are_spared():
    groups, batch = judged(rollout(2), advantages=[1.0])
    batch = batch.with_(rollout_logprobs=torch.tensor([[0.0, math.log(0.5), math.log(0.1)]]))  # π_old / π_rollout = 5
    assert words(record_of(groups, batch, replace(ppo(), correction=mask()), 0.0, HIGH)) == [["high", "spared"]]


def test_untrained_tokens_have_a_reason():
    answers = (
        rollout(2, 1.0),
        rollout(3, loss_mask=(True, False, True)),  # a tool answered in between
        rollout(2, status="failed"),
        rollout(2, finish_reason=FinishReason.length),
        rollout(2),
    )
    groups, batch = judged(*answers, advantages=[1.0, -1.0, 0.0, -1.0, -1.0])
    batch = without_truncated(batch)
    kept = batch.loss_mask.clone()
    kept[0, 2] = kept[4] = False
    assert words(record_of(groups, batch.with_(loss_mask=kept), ppo(), 0.0)) == [
        ["free", "masked", "environment"],
        ["free", "environment", "free"],
        ["unscored", "unscored", "environment"],
        ["truncated", "truncated", "environment"],
        ["masked", "masked", "environment"],
    ]


@pytest.mark.parametrize("updates", [[], [Update(metrics={}, tokens={})] * 2], ids=["no pass", "critic alone"])
def test_without_a_pass_of_the_policy_tokens_are_untrained(updates):
    groups, batch = judged(rollout(1), rollout(1, status="failed"), advantages=[1.0, 0.0])
    record = token_record(step_of(groups, batch.with_(old_logprobs=None), *updates), ppo(), None)
    assert words(record) == [["untrained"], ["unscored"]]
    for name in ("old_logprobs", "ratio", "entropy", "policy_push", "kl_pull", "weight", "bound"):
        assert getattr(record, name).isnan().all()
    assert record.advantages is not None
    assert record.advantages[0, 1] == 1.0
    assert record.rollout_logprobs[:, 1].tolist() == [-0.5, -0.5]


# --------------------------------------------------------------------------------------------------- the numbers


def test_unknown_values_are_nan_and_missing_tensors_are_none():
    answers = (rollout(2, loss_mask=(True, False)), rollout(1, status="failed"))
    groups, batch = judged(*answers, advantages=[1.0, 0.0])
    zeros = torch.zeros(2, 3)
    batch = batch.with_(ref_logprobs=zeros, teacher_logprobs=zeros, values=zeros.double())
    record = record_of(groups, batch, ppo(), 0.0)
    trained = [[False, True, False], [False, False, False]]
    assert (record.targets, record.teacher_divergence) == (None, None)
    otherwise = {"clip", "targets", "teacher_divergence", "rollout_logprobs", "new_logprobs", "share"}
    names = set(TokenRecord.__slots__) - otherwise
    for name in names:
        assert getattr(record, name).isfinite().tolist() == trained, name
        assert getattr(record, name).dtype == torch.float32
    assert record.rollout_logprobs.isfinite().tolist() == [[False, True, False], [False, True, False]]
    assert record.new_logprobs.isnan().all()
    bare = record_of(groups, batch.with_(ref_logprobs=None, teacher_logprobs=None, values=None), ppo(), 0.0)
    assert (bare.ref_logprobs, bare.teacher_logprobs, bare.values) == (None, None, None)


def test_rows_without_a_teacher_have_no_values_of_one():
    groups, batch = judged(rollout(1), rollout(1), advantages=[1.0, 0.0])
    weights = {"first": torch.tensor([0.0, 0.5]), "second": torch.tensor([0.0, 0.5])}
    zeros = torch.zeros(2, 2)
    batch = batch.with_(teacher_logprobs=zeros, teacher_weights=weights, ref_logprobs=zeros)
    record = record_of(groups, batch, ppo(), 0.0)
    assert record.teacher_logprobs is not None
    assert record.teacher_logprobs.isfinite().tolist() == [[False, False], [False, True]]
    assert record.ref_logprobs is not None
    assert record.ref_logprobs.isfinite().tolist() == [[False, True], [False, True]]


# ---------------------------------------------------------------------------------------------- of a real policy


def trained(objective: Objective, *, passes: int, minibatches: int, measure: bool) -> tuple[Step, Tensor]:
    """A step of a small model, and log πθ after it."""
    model, tokenizer = tiny_model()
    policy = Policy(
        model, tokenizer, optimiser=OptimiserSettings(lr=0.02), batch_sizes=BatchSizes(minibatches=minibatches)
    )
    answers = [
        [rollout(3, float(n % 2), token_ids=(40 + n, 50 + group, 60), text=str(n)) for n in range(4)]
        for group in range(2)
    ]
    groups = groups_of(*answers)
    batch = per_token(group_standardised)(Batch.from_groups(groups))
    if measure:
        batch = batch.with_(old_logprobs=policy.logprobs(batch))
    batch = objective.prepare(batch)
    updates = [policy.update(batch, objective) for _ in range(passes)]
    return step_of(groups, batch, *updates), policy.logprobs(batch)


def test_a_single_pass_provides_the_old_logprobs():
    measured, after = trained(ppo(), passes=1, minibatches=1, measure=True)
    alone, _ = trained(ppo(), passes=1, minibatches=1, measure=False)
    assert alone.batch.old_logprobs is None
    expected, found = token_record(measured, ppo(), after), token_record(alone, ppo(), after)
    for name in TokenRecord.__slots__:
        if (value := getattr(expected, name)) is not None:
            torch.testing.assert_close(getattr(found, name), value, equal_nan=True)


def test_passes_and_minibatches_are_combined():
    step, after = trained(ppo(), passes=3, minibatches=2, measure=True)
    assert step.batch.old_logprobs is not None
    record, mask = token_record(step, ppo(), after), step.batch.loss_mask
    last = step.updates[-1].tokens
    pushed = torch.stack([update.tokens["policy_push"] for update in step.updates])
    torch.testing.assert_close(record.policy_push[mask], pushed.sum(0)[mask])
    torch.testing.assert_close(record.weight[mask], pushed[0][mask])
    assert (record.kl_pull[mask] == 0).all()
    torch.testing.assert_close(record.new_logprobs[mask], after[mask])
    ratio = (last["logprobs"] - step.batch.old_logprobs).exp()
    torch.testing.assert_close(record.ratio[mask], ratio[mask])
    up = policy_push(ppo(), step.batch, step.batch.old_logprobs) > 0
    codes = torch.where(up, CLIP.index("high"), CLIP.index("low"))
    clipped = torch.where(up, ratio > 1.2, ratio < 0.8) & mask
    assert clipped.any()
    assert not clipped[mask].all()
    assert (record.clip[clipped] == codes[clipped]).all()
    assert (record.clip[~clipped & mask] == CLIP.index("free")).all()


def test_answers_with_a_common_prefix_share_one_net_push():
    """Rewards of two answers that take the same first token, and then part."""
    batch = one_group([[0.5, 0.4], [0.5, 0.3], [0.2, 0.3]], [2.0, -1.0, -1.0])
    batch = batch.with_(token_ids=torch.tensor([[1, 5, 6], [1, 5, 7], [1, 8, 7]]))
    pushes = torch.tensor([[0.0, 2.0, 2.0], [0.0, -1.0, -1.0], [0.0, -1.0, -1.0]])
    found, share = net_pushes(batch, pushes)
    assert found.tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, -1.0], [0.0, -1.0, -1.0]]
    assert share.tolist() == [[0.0, 0.5, 1.0], [0.0, 0.5, 1.0], [0.0, 1.0, 1.0]]


def test_bounds_cover_the_measured_rows_or_all_rows():
    answers = [rollout(2), rollout(3), rollout(1)]
    groups, batch = judged(*answers, advantages=[1.0, 1.0, -1.0])
    new = torch.full(batch.token_ids.shape, torch.nan)
    everywhere = record_of(groups, batch, ppo(), 0.0)
    step = step_of(groups, batch, one_pass(ppo(), batch, batch.old_logprobs))
    assert token_record(step, ppo(), None).bound.isfinite().sum(1).tolist() == [2, 3, 1]
    new[2] = -0.5
    some = token_record(step, ppo(), new).bound
    assert some.isfinite().sum(1).tolist() == [0, 0, 1]
    torch.testing.assert_close(some[2], token_record(step, ppo(), None).bound[2], equal_nan=True)
    assert everywhere.bound.shape == some.shape
