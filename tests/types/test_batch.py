"""Test that a batch holds the sampled data, and that splitting it does not change the totals of an optimiser step."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import assert_close, batch_of, evaluate, groups, rollout, with_noise

from outdo.algorithms.objectives import presets
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.types import (
    Batch,
    Completion,
    FinishReason,
    Group,
    Prompt,
    Rollout,
    Sampled,
    Step,
    Totals,
    Update,
)
from outdo.utils.errors import UserError

Groups = list[list[Rollout]]


def test_a_row_is_prompt_then_completion_then_padding() -> None:
    batch = batch_of([rollout(3)], [rollout(1)])
    assert batch.token_ids.tolist() == [[1, 10, 11, 12], [1, 2, 10, 0]]
    assert batch.attention_mask.tolist() == [[True] * 4, [True, True, True, False]]
    assert batch.loss_mask.tolist() == [[False, True, True, True], [False, False, True, False]]
    assert batch.prompt_lengths.tolist() == [1, 2]
    assert batch.group.tolist() == [0, 1]


def test_a_rollout_without_a_valid_reward_is_not_trained_and_its_reward_is_ignored() -> None:
    batch = batch_of([rollout(2, 1.0), rollout(2, float("nan"), status="non_finite")])
    assert batch.scored.tolist() == [True, False]
    assert batch.rewards.tolist() == [1.0, 0.0]
    assert batch.loss_mask.any(1).tolist() == [True, False]


def test_a_missing_reward_part_is_nan() -> None:
    batch = batch_of([rollout(reward_parts={"exact": 1.0, "style": None}), rollout(reward_parts={"exact": 0.0})])
    assert batch.reward_parts["exact"].tolist() == [1.0, 0.0]
    assert batch.reward_parts["style"].isnan().all()


def test_rows_without_a_trained_token_count_only_in_the_total_of_rows() -> None:
    batch = batch_of(
        [rollout(3), rollout(0), rollout(2, status="failed"), rollout(2, mask=(False, False))],
        [rollout(0), rollout(4, status="timed_out")],
        [rollout(1)],
    )
    assert batch.totals == Totals(rows=7, sequences=2, tokens=4, groups=2, padded_length=6)


def test_a_completion_has_one_logprob_per_token() -> None:
    with pytest.raises(ValueError, match="2 tokens, but 1 log-prob"):
        Completion(token_ids=(1, 2), logprobs=(0.0,), finish_reason=FinishReason.stop, policy_version=0)


@pytest.mark.parametrize("wrong", [{"loss_mask": (True,)}, {"logprobs": (-1.0,)}, {"token_ids": (1, 2)}])
def test_a_rollout_has_one_mask_entry_and_one_logprob_per_token(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="tokens"):
        rollout(3, **wrong)


def test_a_prompt_has_at_least_one_token_so_that_index_0_is_never_trained() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        Prompt(id="gsm8k/7", text="", token_ids=())


@given(groups(), st.integers(1, 5))
def test_minibatches_split_the_rows_between_groups(members: Groups, n: int) -> None:
    batch = batch_of(*members)
    parts = batch.minibatches(n)
    assert len(parts) == min(n, len(members))
    assert torch.cat([part.group for part in parts]).tolist() == batch.group.tolist()
    for part, after in pairwise(parts):
        assert not set(part.group.tolist()) & set(after.group.tolist())


@given(groups(), st.integers(1, 5))
def test_every_minibatch_counts_its_own_totals(members: Groups, n: int) -> None:
    batch = batch_of(*members)
    parts = batch.minibatches(n)
    for part in parts:
        trained = part.loss_mask.any(1)
        assert part.totals == Totals(
            rows=len(part),
            sequences=int(trained.sum()),
            tokens=int(part.loss_mask.sum()),
            groups=len(set(part.group[trained].tolist())),
            padded_length=part.token_ids.shape[1],
        )
    for name in ("rows", "sequences", "tokens", "groups"):
        assert sum(getattr(part.totals, name) for part in parts) == getattr(batch.totals, name)


@given(groups(), st.integers(1, 60), st.booleans())
def test_microbatches_contain_every_row_once_in_order_and_keep_the_totals_of_the_batch(
    members: Groups, budget: int, whole: bool
) -> None:
    batch, _ = with_noise(batch_of(*members))
    start = 0
    for micro in batch.microbatches(budget, whole_groups=whole):
        rows, width = slice(start, start + len(micro)), micro.token_ids.shape[1]
        assert micro.totals == batch.totals
        for name in ("token_ids", "attention_mask", "loss_mask", "rollout_logprobs", "old_logprobs", "advantages"):
            assert getattr(micro, name).equal(getattr(batch, name)[rows, :width]), name
        assert not batch.attention_mask[rows, width:].any()
        assert micro.group.equal(batch.group[rows])
        start += len(micro)
    assert start == len(batch)


@given(groups(), st.integers(1, 60))
def test_a_microbatch_stays_within_its_token_budget_unless_it_is_a_single_row(members: Groups, budget: int) -> None:
    for micro in batch_of(*members).microbatches(budget, whole_groups=False):
        assert micro.token_ids.numel() <= budget or len(micro) == 1


@given(groups(), st.integers(1, 60))
def test_microbatches_split_no_group_if_whole_groups_are_required(members: Groups, budget: int) -> None:
    parts = list(batch_of(*members).microbatches(budget, whole_groups=True))
    for part in parts:
        assert part.token_ids.numel() <= budget or len(part.group.unique()) == 1
    for part, after in pairwise(parts):
        assert not set(part.group.tolist()) & set(after.group.tolist())


def test_token_rewards_reach_the_batch_and_a_sequence_reward_is_placed_on_the_last_token() -> None:
    steps = rollout(3, 0.7, mask=(True, False, True), token_rewards=(0.2, 0.0, 0.5))
    batch = batch_of([steps, rollout(2, 1.0), rollout(1, status="failed")])
    torch.testing.assert_close(
        batch.token_rewards, torch.tensor([[0.0, 0.2, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    )
    assert batch_of([rollout(2, 1.0)]).token_rewards is None


# -------------------------------------------------------------------------------------------------- from plain tensors


@pytest.mark.parametrize("objective", [presets.grpo(beta=0.04), presets.gspo(), presets.clip_cov()])
def test_a_batch_of_plain_tensors_gives_the_same_loss_as_the_same_rollouts(objective: ComposedObjective) -> None:
    batch, logprobs = with_noise(batch_of([rollout(3, 1.0), rollout(1)], [rollout(2, 1.0), rollout(4)]))
    plain = Batch.of(
        mask=batch.loss_mask,
        advantages=batch.advantages,
        group=batch.group,
        token_ids=batch.token_ids,
        rewards=batch.rewards,
        old_logprobs=batch.old_logprobs,
        ref_logprobs=batch.ref_logprobs,
        rollout_logprobs=batch.rollout_logprobs,
    )
    for name in (
        "attention_mask",
        "loss_mask",
        "turn",
        "prompt_lengths",
        "group",
        "rewards",
        "scored",
        "truncated",
        "totals",
    ):
        expected = getattr(batch, name)
        assert getattr(plain, name) == expected if name == "totals" else getattr(plain, name).equal(expected), name
    assert_close(
        evaluate(objective, logprobs, objective.prepare(plain)), evaluate(objective, logprobs, objective.prepare(batch))
    )


def test_one_advantage_per_row_applies_to_its_tokens_and_every_row_is_a_group() -> None:
    mask = torch.tensor([[False, True, True], [False, True, False]])
    old = torch.tensor([[0.0, -1.0, -2.0], [0.0, -0.5, 0.0]], dtype=torch.float64)
    rows = Batch.of(mask=mask, advantages=torch.tensor([1.0, -1.0], dtype=torch.float64), old_logprobs=old)
    tokens = Batch.of(mask=mask, advantages=torch.tensor([[0.0, 1, 1], [0, -1, 0]]).double(), old_logprobs=old)
    assert_close(evaluate(presets.gspo(), old + 0.1, rows), evaluate(presets.gspo(), old + 0.1, tokens))
    assert rows.group.tolist() == [0, 1]
    assert rows.totals == Totals(rows=2, sequences=2, tokens=3, groups=2, padded_length=3)
    assert rows.rollout_logprobs.equal(old)


def test_all_invalid_tensors_are_reported_together_with_their_shapes() -> None:
    with pytest.raises(UserError) as error:
        Batch.of(
            mask=torch.ones(2, 3),
            advantages=torch.zeros(3),
            group=torch.zeros(2),
            old_logprobs=torch.zeros(2, 4),
            rewards=torch.zeros(2, 3),
        )
    assert str(error.value).splitlines() == [
        "Batch.of: mask has dtype float32, not bool",
        "Batch.of: advantages has shape [3], expected [B, T] = [2, 3] or [B] = [2]",
        "Batch.of: old_logprobs has shape [2, 4], expected [B, T] = [2, 3]",
        "Batch.of: group has dtype float32, not int",
        "Batch.of: rewards has shape [2, 3], expected [B] = [2]",
    ]
    with pytest.raises(UserError, match=r"mask has shape \[3\], expected \[B, T\]"):
        Batch.of(mask=torch.ones(3), advantages=torch.zeros(3))


def test_the_rows_of_a_group_must_be_neighbours() -> None:
    mask = torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(UserError, match="must be neighbours"):
        Batch.of(mask=mask, advantages=torch.zeros(3), group=torch.tensor([0, 1, 0]))


def test_a_batch_of_token_ids_equals_a_batch_of_rollouts_without_rewards() -> None:
    batch = Batch.of_tokens([[1], [1, 2]], [[10, 11, 12], [10]], temperature=[1.0, 0.5])
    expected = batch_of([rollout(3, logprobs=(0.0,) * 3)], [rollout(1, logprobs=(0.0,), temperature=0.5)])
    for name in ("token_ids", "attention_mask", "loss_mask", "prompt_lengths", "group", "rewards", "temperature"):
        assert getattr(batch, name).equal(getattr(expected, name)), name
    assert batch.totals == expected.totals
    assert batch.rollout_logprobs.equal(expected.rollout_logprobs)
    with pytest.raises(ValueError, match="prompts without tokens: 1"):
        Batch.of_tokens([[1], []], [[2], [3]])


def test_the_representation_of_a_step_and_its_parts_is_a_line_and_not_its_tensors() -> None:
    groups = [
        Group(prompt=Prompt(id="7", text="?", token_ids=(1,)), rollouts=(rollout(40, 1.0), rollout(40, 0.5)))
    ] * 32
    batch = Batch.from_groups(groups)
    update = Update(metrics={"loss": 0.25}, tokens={"logprobs": batch.rollout_logprobs})
    step = Step(index=3, sampled=Sampled(groups=groups), batch=batch, updates=[update])
    assert repr(step) == "Step 3: 32 groups, 64 rollouts, mean reward 0.750, 1 pass; outdo.show(step)"
    assert repr(batch) == f"Batch(64 rows, padded to 41 tokens, {64 * 40} to train on)"
    assert repr(groups[0]) == "Group(prompt '7', 2 rollouts, rewards [1, 0.5])"
    assert repr(update) == "Update(loss 0.25, tokens: logprobs)"


# ------------------------------------------------------------------------------------------------------------- turns


def test_turns_are_numbered_also_where_no_token_is_trained() -> None:
    mask = (True, True, False, True, False, False, True)
    batch = batch_of([rollout(7, mask=mask), rollout(7, mask=mask, status="failed")])
    assert batch.turn.tolist() == [[-1, 0, 0, -1, 1, -1, -1, 2]] * 2
    assert batch.loss_mask.any(1).tolist() == [True, False]
