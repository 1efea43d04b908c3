"""Answers to different questions are compared with each other: numbers computed by hand."""

from dataclasses import replace

import pytest
from toys import rollout

from outdo.run.metrics.across_questions import across_question_metrics, distinct_words
from outdo.types import Group, Prompt


def metrics(*groups: list[str]) -> dict[str, float]:
    prompts = [Prompt(id=str(number), text="", token_ids=(1,)) for number in range(len(groups))]
    rollouts = [tuple(rollout(1, text=text) for text in texts) for texts in groups]
    return across_question_metrics([Group(prompt=p, rollouts=r) for p, r in zip(prompts, rollouts, strict=True)])


def test_answers_are_compared_with_those_to_other_questions_only() -> None:
    found = metrics(["Never.", "never.", "A bridge."], ["Never.", "The sea is never calm.", "The sea is wide."])
    assert found["completions/identical_across_ratio"] == 3 / 6  # "Never." twice in one group and once in the other
    assert found["completions/same_beginning_ratio"] == 3 / 6
    assert metrics(["yes", "yes"], ["no", "no"])["completions/identical_across_ratio"] == 0


def test_episodes_with_the_same_last_turn_differ_in_what_was_sampled_before() -> None:
    mask = (True, False, True)
    played = [replace(rollout(3, text="Done."), token_ids=ids, loss_mask=mask) for ids in ((5, 1, 9), (6, 1, 9))]
    prompts = [Prompt(id=str(number), text="", token_ids=(1,)) for number in range(2)]
    groups = [Group(prompt=p, rollouts=(r,)) for p, r in zip(prompts, played, strict=True)]
    assert across_question_metrics(groups)["completions/identical_across_ratio"] == 0
    answered_otherwise = replace(played[0], token_ids=(5, 2, 9))  # what the environment says is no part of it
    groups[1] = replace(groups[1], rollouts=(answered_otherwise,))
    assert across_question_metrics(groups)["completions/identical_across_ratio"] == 1


def test_a_beginning_has_three_words() -> None:
    found = metrics(["The bridge is old."], ["The bridge is new.", "The bridge was new."])
    assert found["completions/same_beginning_ratio"] == pytest.approx(2 / 3)
    assert found["completions/identical_across_ratio"] == 0


def test_repeated_pairs_of_words_are_counted() -> None:
    assert metrics(["during during during during during"])["completions/repeated_ratio"] == 3 / 4
    assert metrics(["one two three four"])["completions/repeated_ratio"] == 0
    assert metrics(["one", ""])["completions/repeated_ratio"] == 0
    assert metrics(["a b a b", "a b c"])["completions/repeated_ratio"] == pytest.approx((1 / 3 + 0) / 2)


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ('"Brave"', 1),
        ("Sugar is like sugar.", 1),
        ("", 1),
        ("Brave is, brave was; and brave!", 0),
        ("A brave knight rode over the bridge.", 0),
    ],
)
def test_an_answer_of_little_more_than_words_of_its_question_has_two_others_at_most(answer: str, share: int) -> None:
    question = 'Write about a bridge. Use the word "brave" or "sugar".'
    for text in (question, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]):
        prompt = Prompt(id="1", text=text, token_ids=(1,))
        found = across_question_metrics([Group(prompt=prompt, rollouts=(rollout(1, text=answer),))])
        assert found["completions/question_words_ratio"] == share


def test_a_single_question_has_no_others() -> None:
    of_an_answer = {"completions/repeated_ratio", "completions/question_words_ratio"}
    assert metrics(["a", "a"]).keys() == of_an_answer
    assert metrics() == {} == metrics([])


def test_different_words_are_counted_in_the_beginnings_of_all_answers() -> None:
    assert distinct_words(["A cat is a cat", "A dog."]) == 5 / 8  # a, cat, is, dog and the full stop
    assert distinct_words([" ".join(["the", *["cat"] * 15, *map(str, range(99))])]) == 2 / 16
    assert distinct_words(["", " "]) is None
