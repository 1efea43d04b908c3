"""The rule that decides which answers are right: the reward that the user names, the only matcher, or a verdict."""

import pytest

from outdo.rewards import load_reward
from outdo.rewards.right import right_rule
from outdo.rewards.types import RewardInput
from outdo.utils.errors import UserError


def answer(text: str, reference: str = "18") -> RewardInput:
    return RewardInput(prompt="9+9=", completion=text, answer=reference)


def accuracy(completion, answer):
    return float(completion == answer)


def style(completion):
    return len(completion) / 10


def polite(completion):
    return "please" in completion


@pytest.mark.parametrize(
    ("names", "chosen", "decides"),
    [
        (["exact"], None, "exact"),
        (["last_number", "format"], None, "last_number"),
        (["exact", "math"], None, None),  # two matchers
        (["exact", "mine"], "mine", "mine"),
        (["mine"], None, "mine"),
        (["mine", "yours"], None, None),  # either could be the one
        (["mine", "yours"], "yours", "yours"),
        (["format"], None, None),
    ],
)
def test_the_reward_that_decides_is_the_named_one_or_the_only_one_that_can(names, chosen, decides):
    assert right_rule(names, chosen).reward == decides


def test_a_name_that_no_reward_has_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"no reward is called 'acuracy'; did you mean accuracy\?"):
        right_rule(["accuracy", "format"], "acuracy")


def test_the_sum_of_the_rewards_plays_no_part():
    reward = load_reward([("exact", 0.8), (style, 1.0)])
    wrong, right = reward([answer("nineteen and so on"), answer("18")])
    assert (wrong.value > 1, wrong.right) == (True, False)
    assert right.value == pytest.approx(0.8 + 0.2)
    assert right.right is True


def test_a_number_is_a_verdict_only_if_eval_right_names_it():
    weighted = [(accuracy, 1.0), (style, 1.0)]
    asked = [answer("18"), answer("1")]
    assert [each.right for each in load_reward(weighted)(asked)] == [None, None]
    assert [each.right for each in load_reward(weighted, right="accuracy")(asked)] == [True, False]
    assert load_reward(accuracy)([answer("18")])[0].right is None
    assert load_reward(accuracy, right="accuracy")([answer("18")])[0].right is True


def test_true_and_false_of_the_only_reward_are_verdicts():
    assert [each.right for each in load_reward(polite)([answer("please"), answer("18")])] == [True, False]
    assert [each.right for each in load_reward([polite, "format"])([answer("please"), answer("18")])] == [True, False]
    assert load_reward([polite, accuracy])([answer("please")])[0].right is None  # accuracy may be the verdict


def test_a_verdict_comes_back_from_a_worker_process(tmp_path):
    (tmp_path / "mine.py").write_text("def even(completion):\n    return len(completion) % 2 == 0\n")
    reward = load_reward(f"{tmp_path / 'mine.py'}:even")
    try:
        assert [each.right for each in reward([answer("18"), answer("1")])] == [True, False]
    finally:
        reward.close()
