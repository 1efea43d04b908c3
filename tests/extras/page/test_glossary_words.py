"""Test that every word that the screen or the page shows has an entry in the glossary."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import outdo.extras.page
from outdo.extras.page import glossary
from outdo.extras.page.glossary_command import command
from outdo.run.step_line import MEANINGS


def said(word: str) -> str:
    with redirect_stdout(io.StringIO()) as out:
        command(word)
    return out.getvalue()


@pytest.mark.parametrize("word", [*MEANINGS, "left"])
def test_every_word_of_the_lines_of_steps_and_evaluations_has_an_entry(word: str) -> None:
    assert said(word)


def test_every_quantity_and_state_of_the_page_has_an_entry() -> None:
    source = (Path(outdo.extras.page.__file__).parent / "static/words.js").read_text()
    titles = re.findall(r"^    title: '(.*)',$", source, re.M)
    states = re.findall(r"^  \['\w+', '(.*)'\],$", source, re.M)
    clips = re.findall(r"^  (\w+):", source.partition("const CLIP_WORDS")[2].partition("};")[0], re.M)
    outcomes = re.findall(r"^  \w+: '(.*)',$", source.partition("const OUTCOME_WORDS")[2].partition("};")[0], re.M)
    assert (len(titles), len(states), len(clips), len(outcomes)) == (16, 4, 11, 6)
    for word in (*titles, *states, *clips, *outcomes):
        assert said(word), word


def test_a_word_of_the_glossary_is_a_metric_with_an_entry_or_a_sentence() -> None:
    for word, meaning in glossary.words().items():
        assert glossary.entry(meaning) or meaning.endswith("."), word


@pytest.mark.parametrize("word", ["Moved as intended", "moved as intended", "moved_as_intended"])
def test_a_word_and_its_metric_have_the_same_entry_in_upper_and_lower_case(word: str) -> None:
    assert "(moved_as_intended)" in said(word)
