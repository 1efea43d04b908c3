"""The runs of the quickstart: their tables in the documentation, and which of them meet the criterion."""

import json
import runpy
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def first_run() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return runpy.run_path(str(ROOT / "benchmarks/first_run.py"), run_name="imported")


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    text = (ROOT / "docs/first-runs.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_tables_of_the_documentation_are_those_of_the_runs(first_run: Any, lines: list[dict[str, Any]]) -> None:
    assert {page.name for page, _ in first_run["PAGES"]} == {"benchmarks.md", "tutorial.md"}
    for page, table in first_run["PAGES"]:
        assert f"\n{table(lines)}\n" in page.read_text(encoding="utf-8")


def test_what_the_end_of_the_command_shows_is_that_of_the_runs(first_run: Any, lines: list[dict[str, Any]]) -> None:
    written = (ROOT / "src/outdo/extras/quickstart/recorded.toml").read_text(encoding="utf-8")
    assert first_run["shown"](lines) == written


def test_every_recorded_run_meets_the_criterion(first_run: Any, lines: list[dict[str, Any]]) -> None:
    assert [(line["task"], line["seed"]) for line in lines if not first_run["meets_criterion"](line)] == []


def test_the_sound_runs_gain_enough_in_the_median_in_the_time_and_the_memory(
    first_run: Any, lines: list[dict[str, Any]]
) -> None:
    sound = [line for line in lines if line["task"] == "sentences"]
    assert median(map(first_run["gain"], sound)) >= first_run["MEDIAN_GAIN"]
    assert max(line["memory"] for line in sound) <= first_run["MEMORY"]
    seconds = min(sound, key=lambda line: line["waited"])["seconds"]  # others had to wait for a processor
    assert seconds <= first_run["SECONDS"]


@pytest.mark.parametrize(
    "change",
    [
        {"after": [0.33, 0.23, 0.45]},  # 24 points
        {"before": [0.09, 0.04, 0.31], "after": [0.4, 0.3, 0.5]},  # the intervals overlap
        {"warnings": ["steps_too_large"]},
    ],
)
def test_a_sound_run_that_gains_too_little_or_has_a_warning_does_not_meet_it(first_run: Any, change: Any) -> None:
    line = {"task": "sentences", "before": [0.09, 0.04, 0.19], "after": [0.6, 0.5, 0.7], "warnings": []}
    assert first_run["meets_criterion"](line)
    assert not first_run["meets_criterion"](line | change)


@pytest.mark.parametrize(
    "change",
    [
        {"page": "Yes."},
        {"first_finding": {"level": "note", "is_hack": True, "text": "the answers are alike: read some"}},
        {"first_finding": {"level": "warning", "is_hack": False, "text": "the answers are alike: read some"}},
    ],
)
def test_a_careless_run_is_caught_if_doctor_and_page_begin_with_the_hack(first_run: Any, change: Any) -> None:
    finding = {"level": "warning", "is_hack": True, "text": "the answers are alike: read some"}
    line = {"task": "careless", "first_finding": finding, "page": "The reward rose, and the answers are alike."}
    assert first_run["meets_criterion"](line)
    assert not first_run["meets_criterion"](line | change)
