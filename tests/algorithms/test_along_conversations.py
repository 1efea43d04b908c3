"""What is computed along the tokens of an episode with several conversations, in numbers worked out by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from conversation_cases import Played, batched, by_name, played
from hypothesis import given
from hypothesis import strategies as st
from toys import batch_of, rollout

from outdo.algorithms.advantages import (
    gae,
    generalised_advantages,
    kl_penalty,
    per_token,
    rewards_of,
    sign,
    to_go,
    token_rewards_of,
    tree,
    turn_centred,
)
from outdo.algorithms.objectives.divergences import k1
from outdo.algorithms.objectives.target.objective import target
from outdo.algorithms.prefix_tree import prefix_tree
from outdo.types import Batch, Rollout
from outdo.utils.errors import UserError

FORKED = rollout(4, 1.0, token_ids=(10, 11, 12, 13), forks=((4, 1),))
"""[10, 11] after the prompt [1, 2], and [12, 13] after the prompt too."""


def two_conversations(*others: Rollout) -> Batch:
    return batch_of([], [FORKED, *others])


def test_the_last_token_of_each_conversation_has_the_reward_and_no_value_after_it() -> None:
    batch = two_conversations().with_(values=torch.tensor([[0, 0, 0.5, 0.9, 0.1, 0.2]]))
    found = partial(gae, lam=0.0, whiten=False)(batch)
    torch.testing.assert_close(found.advantages, torch.tensor([[0, 0, 0.4, 0.1, 0.1, 0.8]]))
    torch.testing.assert_close(found.returns, torch.tensor([[0, 0, 0.9, 1.0, 0.2, 1.0]]))
    assert token_rewards_of(batch).tolist() == [[0, 0, 0, 1, 0, 1]]
    discounted = partial(gae, lam=0.95, whiten=False)(batch.with_(values=torch.zeros(1, 6)))
    torch.testing.assert_close(discounted.advantages, torch.tensor([[0, 0, 0.95, 1, 0.95, 1]]))


def test_only_the_first_conversation_ends_where_the_episode_was_cut_off() -> None:
    batch = two_conversations().with_(truncated=torch.tensor([True]), end_values=torch.tensor([5.0]))
    batch = batch.with_(values=torch.zeros(1, 6))
    found = partial(gae, lam=1.0, whiten=False, bootstrap=True)(batch)
    assert found.returns.tolist() == [[0, 0, 6, 6, 1, 1]]


@given(played())
def test_without_a_discount_every_token_of_an_episode_has_its_reward_as_return(groups: list[list[Played]]) -> None:
    batch, _ = batched(groups)
    returns = gae(batch.with_(values=torch.zeros_like(batch.values)), lam=1.0, whiten=False).returns
    assert returns.equal(batch.rewards[:, None] * batch.loss_mask)
    assert to_go(batch).advantages.equal(returns)


@given(played(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_that_of_conversations_in_rows_of_their_own(
    groups: list[list[Played]], gamma: float, lam: float
) -> None:
    batch, keys = batched(groups)
    found = partial(gae, gamma=gamma, lam=lam, whiten=False)(batch).advantages
    values, rewards = by_name(batch.values, batch, keys), dict(enumerate(batch.rewards.tolist()))
    for row, names in enumerate(keys):
        for talk in {key[1] for key in names}:
            of_talk = [key for key in names if key[1] == talk and key in values]
            own = torch.tensor([[values[key] for key in of_talk]], dtype=torch.float64)
            last = torch.zeros_like(own)
            last[0, -1] = rewards[row]
            everywhere = torch.ones_like(own, dtype=torch.bool)
            expected = generalised_advantages(last, own, everywhere, own.new_zeros(1), gamma=gamma, lam=lam)
            by_token = by_name(found, batch, keys)
            assert [by_token[key] for key in of_talk] == pytest.approx(expected[0].tolist(), abs=1e-12)


@given(played(), st.integers(0, 1))
def test_contexts_are_equal_where_all_tokens_that_the_model_reads_are(groups: list[list[Played]], parity: int) -> None:
    batch, _ = batched(groups)
    batch = batch.with_(token_ids=batch.token_ids % 2 if parity else batch.token_ids.clamp(max=101))
    contexts, tokens = prefix_tree(batch)
    read: dict[tuple[int, int], tuple[int, ...]] = {}
    lengths = batch.attention_mask.sum(1).tolist()
    before = torch.arange(batch.token_ids.shape[1]).expand_as(batch.token_ids) - 1
    before = (before if batch.previous is None else batch.previous).tolist()
    for row, length in enumerate(lengths):
        for column in range(length):
            path = [column]
            while path[-1] >= 0:
                path.append(before[row][path[-1]])
            read[row, column] = tuple(batch.token_ids[row, at].item() for at in path[-2::-1])
    trained = [at for at in read if batch.loss_mask[at]]
    for numbers, key in ((contexts, lambda at: read[at][:-1]), (tokens, lambda at: read[at])):
        expected = {(int(batch.group[at[0]]), key(at)): int(numbers[at]) for at in trained}
        assert all(int(numbers[at]) == expected[int(batch.group[at[0]]), key(at)] for at in trained)
        assert len(set(expected.values())) == len(expected)


def test_a_target_is_that_of_the_tokens_context_and_not_of_an_equal_row() -> None:
    """Of two equal rows one has two conversations: the same token is good in one context, and bad in the other."""
    ids, mask = (10, 11, 30, 12, 13), (True, True, False, True, True)
    whole, forked = (rollout(5, float(bool(forks)), token_ids=ids, mask=mask, forks=forks) for forks in ((), ((4, 1),)))
    batch = batch_of([], [whole, forked])
    contexts, tokens = prefix_tree(batch)
    assert (contexts[0, 2:4].equal(contexts[1, 2:4]), tokens[0, 2:4].equal(tokens[1, 2:4])) == (True, True)
    assert not (contexts[0, 5:] == contexts[1, 5:]).any()
    assert not (tokens[0, 5:] == tokens[1, 5:]).any()
    old = torch.full((2, 7), -0.7)
    old[:, 5] = torch.tensor([-4.0, -0.1])
    batch = target(rule="power").prepare(per_token(sign)(batch).with_(old_logprobs=old))
    assert batch.targets[1, 5] > old[1, 5]
    assert batch.targets[0, 5] < old[0, 5]


def test_a_second_conversation_of_the_same_episode_is_no_baseline_of_a_tree() -> None:
    """The same call twice: both answers have the reward of the episode, and neither is evidence about the other."""
    twice = rollout(3, 1.0, token_ids=(10, 2, 11), mask=(True, False, True), forks=((3, 0),))
    other = rollout(1, 0.25, token_ids=(10,))
    assert tree(batch_of([], [twice, other])).advantages[:, 2:].tolist() == [[0.75, 0, 0.75], [-0.75, 0, 0]]


def test_the_reward_of_an_episode_counts_once_and_the_kl_of_all_its_conversations_counts() -> None:
    batch = two_conversations(rollout(2, 0.5))
    batch = batch.with_(old_logprobs=torch.full((2, 6), -1.0), ref_logprobs=torch.full((2, 6), -1.5))
    penalised = kl_penalty(k1, beta=0.25)(batch)
    assert penalised.token_rewards[0].tolist() == [0, 0, -0.125, 0.875, -0.125, 0.875]
    assert rewards_of(penalised).tolist() == [0.5, 0.25]
    assert to_go(penalised).advantages[0].tolist() == [0, 0, 0.75, 0.875, 0.75, 0.875]


def test_an_episode_beside_others_with_rewards_of_turns_ends_each_conversation_with_its_reward() -> None:
    batch = two_conversations(rollout(2, 0.75, token_rewards=(0.5, 0.25)))
    assert batch.token_rewards.tolist() == [[0, 0, 0, 1, 0, 1], [0, 0, 0.5, 0.25, 0, 0]]
    assert rewards_of(batch).tolist() == [1.0, 0.75]


def test_a_conversation_begins_a_turn_of_its_own() -> None:
    assert two_conversations().turn.tolist() == [[-1, -1, 0, 0, 1, 1]]


def test_turns_of_several_conversations_are_not_compared_with_each_other() -> None:
    with pytest.raises(UserError, match="several conversations do not correspond: use turn_to_go"):
        turn_centred(two_conversations(rollout(2)))
    with pytest.raises(ValueError, match="each conversation of an episode ends with its whole reward"):
        replace(FORKED, token_rewards=(0.0, 0.0, 0.0, 1.0))
