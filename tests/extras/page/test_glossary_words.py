"""Test that every word that a step's line or the page shows has an entry in the glossary."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console

import outdo.extras.page
from outdo.extras.page import glossary
from outdo.extras.page.glossary_command import command
from outdo.run.display import Display

METRICS = {
    "moved_right_way": 0.9,
    "reward": 0.5,
    "right": 0.5,
    "frac_reward_zero_std": 0.25,
    "frac_zero_advantage": 0.1,
    "sampling/sampling_logp_difference/max": 0.5,
    "sampling/corrected": 0.5,
    "num_trained_tokens": 40.0,
    "completions/mean_length": 8.0,
    "completions/clipped_ratio": 0.25,
    "updates/refused": 1.0,
    "reward_status/failed": 2.0,
    "tokens_per_second": 900.0,
}


def said(word: str) -> str:
    with redirect_stdout(io.StringIO()) as out:
        command(word)
    return out.getvalue()


def test_every_word_of_a_steps_line_has_an_entry() -> None:
    console = Console(file=io.StringIO(), width=400)
    display = Display(console, live=False)
    with display.steps(0, 9, rounding=0.1):
        display.step(1, 9, METRICS)
        display.step(2, 9, {"completions/clipped_ratio": 0, "completions/mean_length": 8, "tokens_per_second": 9})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    segments = [part for line in lines for part in line.split("  ")[1:]]
    words = {" ".join(re.findall(r"[a-z][a-z/]*", part)) for part in segments}
    units = re.compile(r" (nats|tokens|not finite)$|^(s|min|h) ")
    assert len(words) >= 11
    for word in words:
        assert said(units.sub("", word)), word


def test_every_quantity_and_state_of_the_page_has_an_entry() -> None:
    source = (Path(outdo.extras.page.__file__).parent / "static/words.js").read_text()
    titles = re.findall(r"^    title: '(.*)',$", source, re.M)
    states = re.findall(r"^  \['\w+', '(.*)'\],$", source, re.M)
    clips = re.findall(r"^  (\w+):", source.partition("const CLIP_WORDS")[2].partition("};")[0], re.M)
    outcomes = re.findall(r"^  \w+: '(.*)',$", source.partition("const OUTCOME_WORDS")[2].partition("};")[0], re.M)
    assert (len(titles), len(states), len(clips), len(outcomes)) == (14, 4, 11, 6)
    for word in (*titles, *states, *clips, *outcomes):
        assert said(word), word


def test_a_word_of_the_glossary_is_a_metric_with_an_entry_or_a_sentence() -> None:
    for word, meaning in glossary.words().items():
        assert glossary.entry(meaning) or meaning.endswith("."), word


@pytest.mark.parametrize("word", ["Moved as intended", "moved as intended", "moved_right_way"])
def test_a_word_and_its_metric_have_the_same_entry_in_upper_and_lower_case(word: str) -> None:
    assert "(moved_right_way)" in said(word)
