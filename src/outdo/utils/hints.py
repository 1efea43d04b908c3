"""What a row says to teachers: which of them teaches it, and what fills the places of a hint.

`{prompt}` in the text of a hint is the question; other names are what a teacher knows beside it.
"""

import re
from collections.abc import Mapping
from typing import Any

from outdo.utils.text import text_or_json

COLUMN = "teacher"
"""The column of a row that names its teacher."""

PROMPT, ANSWER, RIGHT, FEEDBACK = "prompt", "answer", "right", "feedback"
"""The question, its reference answer, another right answer of the group, and what the environment has written."""

PLACE = re.compile(r"\{(\w+)\}")
WORD = re.compile(r"\w+")

IN_A_ROW = 3
"""Words in a row by which an answer repeats a hint: two are in many answers by chance."""


def teacher_of(columns: Mapping[str, Any]) -> str:
    """Return the name of the teacher of a row; empty where it names none."""
    name = columns.get(COLUMN)
    return name if isinstance(name, str) else ""


def places(hint: str) -> list[str]:
    """Return the names in a hint, each once, without that of the question."""
    return [name for name in dict.fromkeys(PLACE.findall(hint)) if name != PROMPT]


def filled(hint: str, values: Mapping[str, Any]) -> str | None:
    """Return the hint with every place filled; None where a value is missing or empty."""
    if any(values.get(name) in (None, "") for name in PLACE.findall(hint)):
        return None
    return PLACE.sub(lambda place: text_or_json(values[place[1]]), hint)


def phrases(hint: str) -> set[tuple[str, ...]]:
    """Return all `IN_A_ROW` words in a row of a hint's own text, in small letters; what fills its places is not."""
    return {words for text in PLACE.split(hint)[::2] for words in in_a_row(text)}


def in_a_row(text: str) -> set[tuple[str, ...]]:
    """Return all `IN_A_ROW` words in a row of a text, in small letters."""
    words = WORD.findall(text.lower())
    return {tuple(words[start : start + IN_A_ROW]) for start in range(len(words) - IN_A_ROW + 1)}
