"""Answers to the same question are compared with each other: numbers computed by hand."""

import math
from dataclasses import replace

import pytest
from toys import rollout

from outdo.run.metrics.within_groups import pooled_correlation, within_group_metrics
from outdo.types import Group, Prompt, Rollout


def answer(text: str, reward: float, *, right: bool | None = None, status: str = "ok") -> Rollout:
    """An answer with a token for each character."""
    return rollout(len(text), reward, text=text, right=right, status=status)


def episode(*tokens: int, reward: float) -> Rollout:
    """An episode that ends with "Done."; its second token is that of the environment."""
    mask = tuple(place != 1 for place in range(len(tokens)))
    return replace(rollout(len(tokens), reward, text="Done."), token_ids=tokens, loss_mask=mask)


def metrics(*groups: list[Rollout]) -> dict[str, float | None]:
    prompts = [Prompt(id=str(number), text="", token_ids=(1,)) for number in range(len(groups))]
    return within_group_metrics([Group(prompt=p, rollouts=tuple(g)) for p, g in zip(prompts, groups, strict=True)])


def test_identical_and_empty_answers_are_counted():
    found = metrics([answer("a", 0), answer("a", 0), answer("b", 0), answer(" ", 1)], [answer("a", 0), answer("", 0)])
    assert found["completions/identical_ratio"] == pytest.approx(1 / 4)  # of three and one further answers
    assert found["completions/empty_ratio"] == pytest.approx(2 / 6)
    assert metrics([answer("a", 0)] * 4)["completions/identical_ratio"] == 1


def test_the_same_text_with_different_rewards_is_disagreement():
    noisy = [answer("a", 0), answer("a", 1), answer("b", 1), answer("b", 1), answer("c", 0)]
    assert metrics(noisy)["reward_disagreement"] == 0.5  # of a and b; c appears once
    assert metrics([answer("a", 0), answer("b", 1)])["reward_disagreement"] is None
    assert metrics([answer("a", 0)], [answer("a", 1)])["reward_disagreement"] is None  # another question


def test_episodes_are_compared_by_all_of_their_tokens():
    """Two ways to the same last turn, of which one is paid."""
    first, second = (episode(*tokens, reward=reward) for tokens, reward in (((5, 7, 9), 0.0), ((5, 8, 9), 1.0)))
    found = metrics([first, second, first])
    assert found["completions/identical_ratio"] == 0.5
    assert found["reward_disagreement"] == 0


def test_the_correlation_with_length_is_taken_within_groups():
    """Long answers to one question have high rewards; within each question the reward falls with length."""
    groups = [[answer("a", 0.2), answer("aa", 0.1)], [answer("a" * 8, 0.9), answer("a" * 9, 0.8)]]
    assert metrics(*groups)["reward_length_correlation"] == pytest.approx(-1)


def test_right_answers_that_are_longer_are_no_reward_for_length():
    group = [answer("long", 1, right=True), answer("longer", 1, right=True), answer("a", 0, right=False)]
    assert metrics(group)["reward_length_correlation"] is None
    paid = [answer("aaaa", 1.4, right=True), answer("aaaaaa", 1.6, right=True), answer("a", 0.1, right=False)]
    assert metrics(paid)["reward_length_correlation"] == pytest.approx(1)
    unknown = [answer("aaaa", 1), answer("aaaaaa", 1), answer("a", 0)]
    assert metrics(unknown)["reward_length_correlation"] == pytest.approx(8 / math.sqrt(6 * 38 / 3))


def test_a_reward_that_is_lower_for_right_answers_correlates_negatively():
    inverted = [answer("a", 0, right=True), answer("b", 1, right=False)]
    assert metrics(inverted, [answer("a", 1, right=False)] * 2)["reward_right_correlation"] == pytest.approx(-1)
    assert metrics([answer("a", 0), answer("b", 1)])["reward_right_correlation"] is None


def test_groups_in_which_reward_or_verdict_is_always_the_same_say_nothing_about_what_the_reward_follows():
    follows = [answer("a", 1, right=True), answer("b", 0, right=False)]
    wrong, paid = ([answer("a", x, right=False), answer("b", y, right=z)] for x, y, z in ((0, 5, False), (1, 1, True)))
    assert metrics(follows, wrong)["reward_right_correlation"] == pytest.approx(1)
    assert metrics(follows, paid)["reward_right_correlation"] == pytest.approx(1)
    assert metrics(wrong, paid)["reward_right_correlation"] is None


def test_answers_without_a_reward_are_left_out_of_correlations():
    group = [answer("a", 1), answer("aa", 2), answer("aaaaaaaaa", 0, status="failed")]
    assert metrics(group)["reward_length_correlation"] == pytest.approx(1)


def test_without_answers_there_is_no_metric():
    assert metrics() == {}
    assert metrics([answer("a", 1)]) == {
        "completions/empty_ratio": 0,
        "completions/identical_ratio": None,
        "reward_disagreement": None,
        "reward_right_correlation": None,
        "reward_length_correlation": None,
        "reward_calls_correlation": None,
    }


def test_a_correlation_is_that_of_differences_from_group_means():
    groups = [[(0.0, 1.0), (2.0, 2.0)], [(5.0, 0.0), (6.0, 3.0)], [(7.0, 7.0)], []]
    assert pooled_correlation(groups) == pytest.approx((1 + 1.5) / math.sqrt((2 + 0.5) * (0.5 + 4.5)))
    assert pooled_correlation([[(1.0, 1.0), (1.0, 2.0)]]) is None
    assert pooled_correlation([[(1e300, 1.0), (-1e300, 2.0)]]) is None  # its square is no number
