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


def gate(completion, answer):
    """False from a check at the beginning, a number at the end."""
    if "#" not in completion:
        return False
    return 1.0 if completion.rpartition("#")[2] == answer else 0.5


def number(completion, answer):
    return float(completion == f"#{answer}")


def boolean(completion, answer):
    return completion == f"#{answer}"


def silent(completion, answer):
    return None if "#" not in completion else completion == f"#{answer}"


GATED, NEARLY, RIGHT = answer("?"), answer("#17"), answer("#18")


@pytest.mark.parametrize("load", [lambda each: each, lambda each: [each]])
@pytest.mark.parametrize("function", [gate, boolean])
def test_a_function_that_returns_true_or_false_gives_a_verdict_by_its_numbers_too(load, function):
    """Whatever the order of the answers of a call, and from the first True or False on, whatever comes later."""
    for asked in ([GATED, NEARLY, RIGHT], [RIGHT, NEARLY, GATED]):
        reward = load_reward(load(function))
        assert [each.right for each in reward(asked)] == [each == RIGHT for each in asked]
        assert [each.right for each in reward([RIGHT, NEARLY])] == [True, False]


@pytest.mark.parametrize("load", [lambda each: each, lambda each: [each]])
def test_a_function_that_has_returned_only_numbers_gives_no_verdict(load):
    reward = load_reward(load(gate))
    assert [each.right for each in reward([RIGHT, NEARLY])] == [None, None]
    assert [each.right for each in load_reward(load(number))([RIGHT, NEARLY, GATED])] == [None] * 3


@pytest.mark.parametrize(
    ("function", "first", "later", "verdicts"),
    [
        (gate, [GATED], [RIGHT, NEARLY], [True, False]),
        (gate, [NEARLY], [RIGHT, GATED], [None, None]),  # the same in every step, and after a resume
        (boolean, [GATED], [RIGHT], [True]),
        (number, [GATED], [RIGHT], [None]),
        (silent, [GATED], [RIGHT, GATED], [True, None]),  # nothing was learnt from None
    ],
)
def test_the_answers_that_a_run_tries_first_decide_for_all_of_its_steps(function, first, later, verdicts):
    reward = load_reward([function])
    reward.tried_first = first
    assert [each.right for each in reward(later)] == verdicts
    assert [each.right for each in reward(later[:1])] == verdicts[:1]


def test_the_reason_names_numbers_where_a_function_returns_both():
    reward = load_reward([gate])
    reward([GATED])
    assert reward.right_reason == "an answer is right if gate returns True (the only reward that can tell)"
    reward([NEARLY])
    assert reward.right_reason == (
        "an answer is right if gate returns True, or a number of 1 or more (the only reward that can tell)"
    )
