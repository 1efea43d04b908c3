"""What answers read of their question: a part that they read less, or not for a while, is named with its course."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import GRPO, found_by, jumping, merged, steps

TOPIC = "about a _ Use"
DOCS = Path(__file__).parents[3] / "docs"


def course(values: dict[int, float], *, name: str = f"eval/reads/{TOPIC}", **others: float) -> list[dict[str, Any]]:
    """A run of 30 steps, whose answers lose so much at these steps; 0 is before the first one."""
    return [{"step": step} | ({name: values[step]} | others if step in values else {}) for step in range(31)]


def said(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each.level, each.text) for each in found_by("stopped_reading", lines, GRPO)]


def test_a_topic_that_was_not_read_and_is_read_half_as_much_is_named_with_its_course() -> None:
    """A reward for a word of the question: half of the answers are that word, and half name the topic again."""
    lines = course({0: 13.6, 15: 0.3, 30: 7.7})
    more = {
        "completions/mean_length": [24.0] * 10 + [12.0] * 20,
        "completions/question_words_ratio": [0.0] * 10 + [0.52] * 20,
        "completions/identical_ratio": [0.0] * 10 + [0.4] * 20,
        "completions/identical_across_ratio": [0.0] * 30,
    }
    assert said(merged(lines, steps((30, more)))) == [
        (
            "warning",
            f'the answers depend less on the word in "{TOPIC}": with the word of another question there, an answer '
            "lost 13.6 nats at the start, 0.3 after step 15, and loses 7.7 now. Now an answer has 12 tokens (24 at the "
            "start), 52% of the answers have at most two words that their question does not have (0%) and 40% of the "
            "further answers to a question repeat one (0%).",
        )
    ]


LESS, NO_LONGER, FOR_A_WHILE = "depend less on", "no longer read", "did not read for a while"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({0: 13.6, 30: 0.3}, [("warning", NO_LONGER)]),
        ({0: 13.6, 15: 0.3, 30: 7.7}, [("warning", LESS)]),
        ({0: 13.6, 15: 0.3, 30: 13.1}, [("note", FOR_A_WHILE)]),
        ({0: 13.6, 30: 6.5}, [("warning", LESS)]),
        ({0: 13.6, 30: 7.2}, []),
        ({0: 13.6, 15: 4.0, 30: 12.0}, []),
        ({0: 5.0, 30: 2.4}, []),  # it was read little: half of it may be chance
        ({0: 2.9, 30: 0.1}, []),
        ({0: 13.6, 15: 18.0, 30: 22.8}, []),
    ],
)
def test_less_than_a_half_and_a_fifth_at_any_time_are_reported(
    values: dict[int, float], found: list[tuple[str, str]]
) -> None:
    told = said(course(values))
    assert [(level, f"the answers {verb} the word") for level, verb in found] == [
        (level, text.split(" in ")[0]) for level, text in told
    ]


@pytest.mark.parametrize(("shares", "found"), [((0.96, 0.54), 1), ((0.96, 0.66), 0), ((0.7, 0.4), 0), ((0.9, 1.0), 0)])
def test_a_part_that_half_of_the_answers_read_is_read_less_however_much_the_others_lose(
    shares: tuple[float, float], found: int
) -> None:
    ratio = course(dict(zip((0, 30), shares, strict=True)), name=f"eval/reads_ratio/{TOPIC}")
    told = said(merged(course({0: 13.6, 30: 12.0}), ratio))
    assert len(told) == found
    assert all("loses 12.0 now (54% of the answers lose a nat or more, 96% did)." in text for _, text in told)


def test_a_part_that_all_answers_read_half_as_much_is_a_note() -> None:
    """Sentences of ten words name their topic once where answers of twenty had named it again."""
    halved = course({0: 20.6, 30: 9.0})
    for shares, level in (((1.0, 0.96), "note"), ((1.0, 0.8), "warning")):
        ratio = course(dict(zip((0, 30), shares, strict=True)), name=f"eval/reads_ratio/{TOPIC}")
        ((found, text),) = said(merged(halved, ratio))
        assert (found, LESS in text) == (level, True)


@pytest.mark.parametrize(("questions", "found"), [(2.0, 0), (8.0, 1)])
def test_two_questions_of_a_step_do_not_tell_that_a_word_is_read_again(questions: float, found: int) -> None:
    asked = {"reads/questions": questions}
    assert len(said(course({1: 13.6, 10: 0.3, 20: 9.0}, name=f"reads/{TOPIC}", **asked))) == found
    assert len(said(course({1: 13.6, 10: 9.0, 20: 0.3}, name=f"reads/{TOPIC}", **asked))) == 1


def test_a_dip_in_training_is_part_of_the_course_of_held_out_answers() -> None:
    dip = course({1: 15.0, 10: 0.4, 20: 9.0}, name=f"reads/{TOPIC}", **{"reads/questions": 8.0})
    ((level, text),) = said(merged(course({0: 13.6, 30: 7.7}), dip))
    assert level == "warning"
    assert "an answer lost 13.6 nats at the start, 0.4 after step 10, and loses 7.7 now." in text
    assert [level for level, _ in said(merged(course({0: 13.6, 30: 14.0}), dip))] == ["note"]


def test_of_a_whole_question_half_is_no_part_that_is_missing() -> None:
    """Answers that become shorter lose less without each of its words."""
    assert said(course({0: 25.0, 30: 9.0}, name="eval/reads/mean")) == []
    assert said(course({0: 25.0, 30: 2.0}, name="eval/reads/mean"))[0][1].startswith("the answers no longer read their")


def test_a_broken_policy_has_not_stopped_reading_for_its_reward() -> None:
    falling = steps((30, {"reward": sorted(jumping(0.1, 0.9, 30), reverse=True)}))
    assert said(merged(course({0: 13.6, 15: 0.3, 30: 7.7}), falling)) == []


@pytest.mark.parametrize(
    ("file", "reading"),
    # A learning rate ten times too high left the answers of one run without their question: `test_real_runs.py`.
    [("hacks-all-weights", "sound|learning rate|twenty"), ("hacks", "sound|twenty")],
)
def test_the_runs_of_the_benchmark_of_hacks_are_told_apart_by_their_first_and_last_evaluation(
    file: str, reading: str
) -> None:
    for run in map(json.loads, (DOCS / f"{file}.jsonl").read_text().splitlines()):
        lines = [
            {"step": step} | {f"eval/{name}": value for name, value in run[when].items()}
            for step, when in ((0, "before"), (25, "after"))
        ]
        if re.match(reading, run["name"]):
            assert said(lines) == [], run["name"]
        elif run["first"] == "stopped_reading":
            assert said(lines), run["name"]
