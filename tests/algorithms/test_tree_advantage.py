"""Test the tree advantage: unbiased by exact enumeration, less variance, and exactly 0 where no answers part."""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from contexts import answers, doubles
from torch import Tensor
from toys import assert_close, batch_of

from outdo.algorithms.advantages import Advantage, leave_one_out, per_token, tree
from outdo.types import Rollout

Answer = tuple[int, ...]
DEEP = [*itertools.product((0, 1), repeat=3), (2,)]
"""Every answer of a game of three moves, in which the move 2 ends it at once."""
SHORT = [*itertools.product((0, 1), repeat=2)]
REWARDS = doubles([0.3, 1.0, 0.0, 0.9, 2.0, -1.0, 0.7, 0.2, 0.5])


def score_of(answers_: Sequence[Answer]) -> tuple[Tensor, dict[Answer, list[Tensor]]]:
    """Return log π [A] of whole answers, and ∇ log π of each of their moves, by the logits of a tabular policy."""
    moves: dict[Answer, set[int]] = {}
    for answer in answers_:
        for t, move in enumerate(answer):
            moves.setdefault(answer[:t], set()).add(move)
    random = torch.Generator().manual_seed(3)
    sizes = [len(each) for each in moves.values()]
    logits = torch.randn(sum(sizes), generator=random, dtype=torch.float64, requires_grad=True)
    policy = dict(zip(moves, (part.log_softmax(0) for part in logits.split(sizes)), strict=True))
    terms = {answer: [policy[answer[:t]][move] for t, move in enumerate(answer)] for answer in answers_}
    scores = {
        answer: [torch.autograd.grad(term, logits, retain_graph=True)[0] for term in terms[answer]]
        for answer in answers_
    }
    return torch.stack([torch.stack(terms[answer]).sum() for answer in answers_]).detach(), scores


def moments(advantage: Advantage, size: int, answers_: Sequence[Answer], values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the summed variance of the policy gradient, over all groups of `size` answers."""
    logprobs, scores = score_of(answers_)
    groups = list(itertools.combinations_with_replacement(range(len(answers_)), size))
    batch = batch_of(*[answers(*(answers_[n] for n in group)) for group in groups])
    found = advantage(batch.with_(rewards=values[torch.tensor(groups).flatten()])).advantages
    first, second = torch.zeros_like(scores[answers_[0]][0]), doubles([0.0])
    for number, group in enumerate(groups):
        orders = math.factorial(size) / math.prod(math.factorial(group.count(n)) for n in set(group))
        chance = orders * logprobs[list(group)].sum().exp()
        gradient = torch.zeros_like(first)
        for row, n in enumerate(group, start=number * size):
            mine = found[row][batch.loss_mask[row]]
            gradient += sum(a * score for a, score in zip(mine, scores[answers_[n]], strict=True)) / size
        first += chance * gradient
        second += chance * gradient.square().sum()
    return first, second - first.square().sum()


def true_gradient(answers_: Sequence[Answer], values: Tensor) -> Tensor:
    logprobs, scores = score_of(answers_)
    return sum(
        value * logprob.exp() * sum(scores[answer])
        for answer, value, logprob in zip(answers_, values, logprobs, strict=True)
    )


@pytest.mark.parametrize("shrink", [0.0, 1.5])
@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_policy_gradient_is_the_true_one(size: int, shrink: float) -> None:
    mean, _ = moments(partial(tree, shrink=shrink), size, DEEP, REWARDS)
    assert_close(mean, true_gradient(DEEP, REWARDS))


def test_the_variance_falls_where_the_first_move_decides_and_rises_where_it_does_not() -> None:
    """A baseline of few answers is noisy: it pays only where it knows more than the mean of the group."""
    decided, undecided = doubles([1.0, 0.9, 0.0, 0.1]), doubles([1.0, 0.0, 0.9, 0.1])

    def variance(advantage: Advantage, values: Tensor) -> float:
        mean, variance = moments(advantage, 6, SHORT, values)
        assert_close(mean, true_gradient(SHORT, values))
        return float(variance)

    answer_level = per_token(leave_one_out)
    assert variance(tree, decided) < 0.8 * variance(answer_level, decided)
    assert variance(tree, undecided) > variance(answer_level, undecided)
    assert variance(partial(tree, shrink=2.0), undecided) < variance(tree, undecided)


def by_hand(*members: Rollout, rewards: list[float], **options: float) -> Tensor:
    batch = batch_of(list(members)).with_(rewards=torch.tensor(rewards, dtype=torch.float64))
    found = tree(batch, **options).advantages
    return found[:, 1:]  # the prompt has one token


def test_each_token_is_compared_with_the_others_that_share_its_beginning() -> None:
    members = answers((5, 6, 7), (5, 6, 8), (5, 9), (4,))
    expected = [
        [1 - 1 / 3, 1 - 0.0, 1 - 0.0],
        [0 - 2 / 3, 0 - 0.5, 0 - 1.0],
        [0 - 2 / 3, 0 - 0.5, 0.0],
        [1 - 1 / 3, 0.0, 0.0],
    ]
    assert_close(by_hand(*members, rewards=[1, 0, 0, 1]), torch.tensor(expected, dtype=torch.float64))


def test_a_context_of_one_answer_has_the_baseline_of_the_last_context_it_shared() -> None:
    members = answers((5, 6, 7, 8), (5, 9), (5, 9))
    found = by_hand(*members, rewards=[1, 0, 0.5])
    assert_close(found[0], torch.full((4,), 1 - 0.25, dtype=torch.float64))


def test_shrinking_pulls_a_mean_of_few_answers_towards_the_one_before() -> None:
    found = by_hand(*answers((5, 6), (5, 6), (4, 6)), rewards=[1, 0, 1], shrink=3.0)
    # First token: b = 1/2. Second: one other with the return 0, and b = 1/2 + 1/4 · (0 - 1/2).
    assert_close(found[0], torch.tensor([0.5, 1 - 0.375], dtype=torch.float64))


def test_rewards_per_token_are_summed_from_the_token_on() -> None:
    batch = batch_of(answers((5, 6), (5, 6), (5, 7)))
    per = torch.tensor([[0, 1.0, 2.0], [0, 3.0, 0.0], [0, 0.0, 5.0]], dtype=torch.float64)
    found = tree(batch.with_(token_rewards=per, rewards=batch.rewards.double())).advantages
    expected = torch.tensor([[3 - 4.0, 2 - 2.5], [3 - 4.0, 0 - 3.5], [5 - 3.0, 5 - 1.0]], dtype=torch.float64)
    assert_close(found[:, 1:], expected)


def test_scaled_it_is_divided_by_the_deviation_of_the_rewards_of_the_group() -> None:
    members = answers((5, 6), (5, 7), (4, 8))
    plain = by_hand(*members, rewards=[4, 0, 2])
    assert_close(by_hand(*members, rewards=[4, 0, 2], scale=1.0, eps=0.5), plain / 2.5)


def test_equal_rewards_have_exactly_no_advantage() -> None:
    found = by_hand(*answers((5, 6), (5, 7), (4, 8), (4, 8)), rewards=[0.1, 0.1, 0.1, 0.1])
    assert found.eq(0).all()


def test_a_negative_shrink_is_refused() -> None:
    with pytest.raises(ValueError, match="shrink must be at least 0"):
        tree(batch_of(answers((1,))), shrink=-1.0)
