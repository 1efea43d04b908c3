"""Test the advantages of turns: an exact gradient by enumeration of a game, and the bias of centring by turn index."""

import itertools
import math
from functools import partial

import pytest
import torch
from contexts import doubles
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toys import assert_close, batch_of, groups, rollout

from outdo.algorithms.advantages import Advantage, leave_one_out, per_token, turn_centred, turn_to_go
from outdo.algorithms.advantages.turns import rewards_of_turns
from outdo.types import Batch, Rollout
from outdo.utils.errors import UserError

STOP = 2
"""The action of the first turn that ends the episode."""

EPISODES = [(STOP,), *itertools.product((0, 1), (0, 1, 2))]
"""Every episode of a game of two turns with three actions each."""

FIRST = {0: 0.3, 1: -0.4, STOP: 1.1}
SECOND = {(0, 0): 0.9, (0, 1): 0.0, (0, 2): -1.0, (1, 0): 2.0, (1, 1): 0.7, (1, 2): 0.2}
"""The rewards of the turns."""


def rewards_of(episode: tuple[int, ...]) -> list[float]:
    return [FIRST[episode[0]], *([SECOND[episode]] if len(episode) == 2 else [])]


def played(episode: tuple[int, ...], rewards: list[float]) -> Rollout:
    """Each turn is one token of the policy; between two there are two tokens of the environment, one with a reward."""
    if len(episode) == 1:
        return rollout(token_ids=episode, loss_mask=(True,), logprobs=(0.0,), token_rewards=(rewards[0],))
    first, second = episode
    return rollout(
        token_ids=(first, 8, 9, second),
        loss_mask=(True, False, False, True),
        logprobs=(0.0,) * 4,
        token_rewards=(rewards[0], 0.0, 77.0, rewards[1]),  # outside of the policy's tokens a reward is never read
    )


class Game:
    """The game with a tabular policy: the probability and the scores of each episode, and the exact gradient."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(5)
        self.logits = torch.randn(9, generator=random, dtype=torch.float64, requires_grad=True)
        start, *later = (part.log_softmax(0) for part in self.logits.split(3))
        self.terms = {
            episode: [start[episode[0]], *(later[episode[0]][action] for action in episode[1:])] for episode in EPISODES
        }
        self.scores = {
            episode: [torch.autograd.grad(term, self.logits, retain_graph=True)[0] for term in terms]
            for episode, terms in self.terms.items()
        }

    def gradient(self, gamma: float) -> Tensor:
        """Return the gradient of E[Σ γ^k r_k]."""
        chances = torch.stack([torch.stack(terms).sum() for terms in self.terms.values()]).exp()
        values = [sum(gamma**k * reward for k, reward in enumerate(rewards_of(each))) for each in self.terms]
        return torch.autograd.grad(chances @ doubles(values), self.logits, retain_graph=True)[0]

    def expected(self, advantage: Advantage, size: int) -> Tensor:
        """Return the mean of the policy gradient over all groups of `size` episodes."""
        sampled = list(itertools.combinations_with_replacement(EPISODES, size))
        batch = exact(batch_of(*[[played(each, rewards_of(each)) for each in group] for group in sampled]))
        found = advantage(batch).advantages
        total = torch.zeros_like(self.logits)
        for number, group in enumerate(sampled):
            orders = math.factorial(size) / math.prod(math.factorial(group.count(each)) for each in set(group))
            chance = orders * math.exp(sum(term.item() for each in group for term in self.terms[each]))
            for row, each in enumerate(group, start=number * size):
                mine = found[row][batch.loss_mask[row]]
                total += chance / size * sum(a * score for a, score in zip(mine, self.scores[each], strict=True))
        return total


def exact(batch: Batch) -> Batch:
    """Return the batch with its rewards per token in float64, without the rounding of float32."""
    rounded = batch.token_rewards.double()
    known = torch.tensor(sorted({0.0, 77.0, *FIRST.values(), *SECOND.values()}), dtype=torch.float64)
    nearest = (rounded[..., None] - known).abs().argmin(-1)
    return batch.with_(token_rewards=known[nearest], rewards=batch.rewards.double())


@pytest.mark.parametrize("gamma", [1.0, 0.7])
@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_gradient_of_turn_to_go_is_the_true_one(size: int, gamma: float) -> None:
    game = Game()
    assert_close(game.expected(partial(turn_to_go, gamma=gamma), size), game.gradient(gamma))


def test_the_usual_discount_is_not_the_gradient_of_the_discounted_rewards() -> None:
    game = Game()

    def without_the_power(batch: Batch) -> Batch:
        found = turn_to_go(batch, gamma=0.7).advantages
        return batch.with_(advantages=found * 0.7 ** -batch.turn.clamp(min=0).double())

    assert (game.expected(without_the_power, 2) - game.gradient(0.7)).abs().max() > 0.02


def test_centring_by_turn_index_sees_no_difference_between_one_more_turn_and_the_end() -> None:
    """Each turn pays 1: the gradient by the chance p to stop is -1, and the centred advantages are all 0."""
    members = [played((STOP,), [1.0]), played((0, 1), [1.0, 1.0]), played((1, 0), [1.0, 1.0])]
    batch = batch_of(members)
    rewards = rewards_of_turns(batch)
    takes = torch.stack([(batch.turn == k).any(1) for k in range(2)], 1)  # [B, K]
    centred = (rewards - (rewards * takes).sum(0) / takes.sum(0)).where(takes, 0.0)
    assert centred.tolist() == [[0, 0]] * 3
    assert by_turn(turn_to_go(batch)) == [[-1.0], pytest.approx([0.5, 0.5]), pytest.approx([0.5, 0.5])]
    with pytest.raises(UserError, match="one group has 1 and 2: use turn_to_go"):
        turn_centred(batch)


def by_turn(batch: Batch) -> list[list[float]]:
    """Return the advantages of each row's trained tokens."""
    return [row[mask].tolist() for row, mask in zip(batch.advantages, batch.loss_mask, strict=True)]


def test_turns_are_centred_and_scaled_one_by_one_and_added_from_the_last() -> None:
    batch = batch_of([played((0, 1), rewards) for rewards in ([1.0, 0.0], [0.0, 4.0], [0.0, 0.0], [1.0, 0.0])])
    # first turns: ±.5; second turns: mean 1, so -1 and 3
    assert by_turn(turn_centred(batch, scale=False)) == [[-0.5, -1], [2.5, 3], [-1.5, -1], [-0.5, -1]]
    first = 0.5 / math.sqrt(1 / 3)  # standard deviations with the divisor 3: that of the second turns is 2
    expected = [[first - 0.5, -0.5], [1.5 - first, 1.5], [-first - 0.5, -0.5], [first - 0.5, -0.5]]
    for found, advantages in zip(by_turn(turn_centred(batch, eps=0.0)), expected, strict=True):
        assert found == pytest.approx(advantages, abs=1e-6)


def test_all_tokens_of_a_turn_have_its_advantage_and_those_of_the_environment_have_none() -> None:
    long = rollout(6, mask=[True, True, False, True, True, True], token_rewards=(0.5, 0.5, 9.0, 0.0, 0.0, 2.0))
    short = rollout(2, mask=[True, True], token_rewards=(0.0, 1.0))
    found = turn_to_go(batch_of([long, short])).advantages
    assert found.tolist() == [[0, 2, 2, 0, 2, 2, 2], [0, -2, -2, 0, 0, 0, 0]]


def test_an_episode_that_failed_is_in_no_mean() -> None:
    failed = rollout(2, mask=[True, True], token_rewards=(0.0, 50.0), status="failed")
    members = [rollout(1, token_rewards=(reward,)) for reward in (1.0, 3.0)]
    assert by_turn(turn_to_go(batch_of([*members, failed]))) == [[-2.0], [2.0], []]


@given(groups())
def test_with_one_turn_each_turn_to_go_is_leave_one_out(drawn: list[list[Rollout]]) -> None:
    members = [[rollout(len(each.token_ids), each.reward, status=each.status) for each in group] for group in drawn]
    batch = batch_of(*members)
    assert_close(turn_to_go(batch).advantages, per_token(leave_one_out)(batch).advantages, tolerance=1e-6)


@given(st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=2), min_size=1, max_size=4))
def test_equal_episodes_have_no_advantage_to_the_bit(drawn: list[list[float]]) -> None:
    for rewards in drawn:
        episode = (STOP,) if len(rewards) == 1 else (0, 1)
        batch = batch_of([played(episode, rewards)] * 3)
        for advantage in (turn_to_go, turn_centred, partial(turn_to_go, gamma=0.3)):
            assert {a for row in by_turn(advantage(batch)) for a in row} == {0.0}


@pytest.mark.parametrize("gamma", [-0.1, 1.5])
def test_a_discount_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
        turn_to_go(batch_of([rollout()]), gamma=gamma)
