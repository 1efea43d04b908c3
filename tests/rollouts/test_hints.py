"""The hints of a teacher: what fills their places, and which answers have none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from toys import rollout

from outdo.rollouts.hints import Hints, last_text, with_last_text
from outdo.types import Group, Prompt, Sampled
from outdo.utils.hints import filled, places

CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}]


def group(text: Any = "2+2?", **columns: Any) -> Group:
    """A right, a wrong and another right answer; the second has two tokens of an environment."""
    prompt = Prompt(id="0", text=text, token_ids=(1, 2), answer="4", columns=columns)
    answers = (
        rollout(2, 1.0, text="four", right=True),
        rollout(4, 0.0, text="five", right=False, mask=(True, False, False, True)),
        rollout(2, 1.0, text="it is 4", right=True),
    )
    return Group(prompt=prompt, rollouts=answers)


def hinted(hint: str, given: Group | None = None, **options: Any) -> list[str | None]:
    """The text that the teacher reads before each answer."""

    def encode(prompt: Prompt, text: Any) -> tuple[int, ...]:
        return tuple(last_text(text).encode())

    def decode(token_ids: Sequence[int]) -> str:
        return f"tokens {list(token_ids)}"

    hints = Hints(hint, encode, decode, **options)
    [(step, sampled)] = hints.written([(3, Sampled(groups=(given or group(),)))])
    assert step == 3
    prompts = [answer.teacher_prompt for answer in sampled.groups[0].rollouts]
    return [None if prompt is None else bytes(prompt).decode() for prompt in prompts]


def test_the_places_of_a_hint_are_filled():
    assert hinted("{prompt} It is {answer}.") == ["2+2? It is 4."] * 3
    assert hinted("{prompt} {note}", group(note="easy")) == ["2+2? easy"] * 3
    assert hinted("{prompt} {numbers}", group(numbers=[1, 2])) == ["2+2? [1, 2]"] * 3
    assert hinted("{prompt} {right}") == ["2+2? it is 4", "2+2? four", "2+2? four"]
    assert hinted("{prompt} {feedback}") == [None, "2+2? tokens [11, 12]", None]


def test_answers_that_repeat_the_hints_own_words_are_counted():
    def share(hint: str, *texts: str, question: Any = "2+2?") -> dict[str, float]:
        answers = tuple(rollout(2, 1.0, text=text) for text in texts)
        hints = Hints(hint, lambda prompt, text: (), lambda token_ids: "")
        return hints.metrics([replace(group(question), rollouts=answers)])

    hint, name = "{prompt}\nThe right answer is {answer}.", "teacher/repeats_hint_ratio"
    assert share(hint, "The RIGHT answer: 4", "The answer is 4", "right, the answer is", "It is 4") == {name: 0.25}
    asked = [{"role": "user", "content": "What is the right answer?"}]
    assert share(hint, "the right answer", "right answer is 4", question=asked) == {name: 0.5}
    assert share("{prompt} {answer} or so", "so 4 or so") == {}  # no three words of its own follow each other
    assert share("{prompt} it is {answer} I think so", "it is 4 I think so") == {name: 1.0}
    assert share(hint) == {}
    of_data = replace(group(), rollouts=(rollout(2, 1.0, text="the right answer"),), demonstrated=True)
    assert Hints(hint, lambda prompt, text: (), lambda token_ids: "").metrics([of_data]) == {}


def test_an_answer_whose_places_cannot_be_filled_has_no_hint():
    alone = group()
    one_right = replace(alone, rollouts=(alone.rollouts[0], alone.rollouts[1]))
    assert hinted("{prompt} {right}", one_right) == [None, "2+2? four"]
    for columns in ({}, {"note": None}, {"note": ""}):
        assert hinted("{prompt} {note}", group(**columns)) == [None] * 3
    assert hinted("{prompt} {note}", group(note=0)) == ["2+2? 0"] * 3


def test_an_answer_that_is_too_long_after_its_hint_has_none():
    assert hinted("{prompt}!", longest=7) == ["2+2?!", None, "2+2?!"]


def test_the_last_message_of_the_user_becomes_the_hint():
    assert last_text(CHAT) == "2+2?"
    assert with_last_text(CHAT, "2+2? It is 4.") == [CHAT[0], {"role": "user", "content": "2+2? It is 4."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}]
    assert last_text(parts) == "2+2?"
    prefilled = [*CHAT, {"role": "assistant", "content": "It"}]
    assert with_last_text(prefilled, "x") == [CHAT[0], {"role": "user", "content": "x"}, prefilled[2]]


@pytest.mark.parametrize("value", ["{answer}", "{prompt}", "{0}"])
def test_what_fills_a_place_is_not_read_as_a_place(value: str):
    assert filled("{prompt} {note}", {"prompt": value, "note": value}) == f"{value} {value}"


def test_places_are_named_once_and_braces_of_a_program_are_no_places():
    assert places("{prompt} {a} {b} {a} {} { c } {{d}}") == ["a", "b", "d"]
