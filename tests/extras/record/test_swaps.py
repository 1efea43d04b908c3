"""Which words of a question are replaced, and by what."""

import pytest

from outdo.extras.record.reading.swaps import named_places, question_of, swaps, with_question

TOPICS = ["bridge", "desert", "grey harbour", "forest", "mirror", "storm", "umbrella"]
WORDS = ["never", "silver", "twelve", "quiet"]


def sentence(topic: str, word: str) -> str:
    article = "an" if topic[0] in "aeiou" else "a"
    return f'Write one sentence about {article} {topic}. Use the word "{word}".'


QUESTIONS = [sentence(topic, word) for topic in TOPICS for word in WORDS]


def changes(question: str, others: list[str]) -> dict[str, str]:
    return {question[each.start : each.end]: each.other for each in swaps(question, others)}


def test_only_what_differs_in_a_template_is_replaced() -> None:
    assert changes(sentence("bridge", "never"), [sentence("desert", "silver")]) == {
        "bridge": "desert",
        "never": "silver",
    }
    found = changes(sentence("bridge", "never"), QUESTIONS)
    assert found.keys() == {"bridge", "never"}
    assert found["bridge"] in TOPICS
    assert found["never"] in WORDS


def test_a_replaced_word_leaves_the_rest_of_the_question_as_it_is() -> None:
    question = sentence("bridge", "never")
    first, second = swaps(question, [sentence("desert", "silver")])
    assert first.of(question) == sentence("desert", "never")
    assert second.of(question) == sentence("bridge", "silver")


def test_a_word_that_no_other_question_has_one_for_is_hidden() -> None:
    (hidden,) = swaps("Name a river in Asia slowly", ["Name a river in Asia"])
    assert (hidden.other, hidden.of("Name a river in Asia slowly")) == ("", "Name a river in Asia ")


@pytest.mark.parametrize("others", [[], ["the same question"], ["THE SAME  QUESTION".lower()]])
def test_a_question_that_is_alone_has_nothing_to_replace(others: list[str]) -> None:
    assert swaps("the same question", others) == []


def test_places_have_the_names_of_the_words_around_them() -> None:
    places = {each.place for each in swaps(sentence("mirror", "quiet"), QUESTIONS)}
    assert places == {"about a _ Use", "the word _"}
    assert set(named_places(QUESTIONS)) == places
    sums = [f"What is {a} plus {a * 7 % 90}?" for a in range(11, 30)]
    assert set(named_places(sums)) == {"What is _ plus", "is plus _"}


def test_questions_without_a_template_have_no_named_places() -> None:
    free = ["Mary has three apples and eats one", "How far does a train go in two hours", "Tom sold clips to friends"]
    assert named_places(free) == []
    assert not any(each.place for each in swaps(free[0], free))


def test_the_question_of_messages_is_the_last_one_of_the_user() -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+3?"}]
    assert question_of(messages) == "2+3?"
    assert with_question(messages, "4+5?") == [messages[0], {"role": "user", "content": "4+5?"}]
    assert (question_of("2+3?"), with_question("2+3?", "4+5?")) == ("2+3?", "4+5?")
    assert question_of([{"role": "system", "content": "Be short."}]) == ""
