"""The numbers of the README that can be counted are those of the code."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quickstart_picture import PICTURE, RUNS, filled, of_task, picture
from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    COMPOSED_NUMBERS,
    COMPOSED_PIECES,
    CRITICS,
    DIVERGENCES,
    OBJECTIVES,
    REWARDS,
    SCHEDULES,
    STOPS,
    TRACKERS,
)
from outdo.config.settings import leaves
from outdo.extras.agents.check import LIMITS as AGENT_LIMITS
from outdo.extras.episodes.check import LIMITS
from outdo.extras.trackers.check import tracker_options
from outdo.extras.vllm.check import OWN_OPTIONS
from outdo.utils.imports import signature_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACES = {"objective": OBJECTIVES, "advantage": ADVANTAGES, "kl_in_reward": DIVERGENCES, "critic": CRITICS}
PLACES |= {"stop": STOPS, "algorithm": ALGORITHMS, "schedule": SCHEDULES, "rewards": REWARDS, **COMPOSED_PIECES}


def test_the_settings_are_counted_with_the_options_of_the_pieces():
    counted = re.search(r"\| (\d+), for the whole family: (\d+) of a run, and (\d+) options of named pieces", README)
    assert counted is not None
    specs = [(place, spec) for place, known in PLACES.items() for spec in known.values()]
    options = {(place, option) for place, spec in specs for option in signature_of(spec).options}
    options |= {("objective", name) for name in (*COMPOSED_NUMBERS, *COMPOSED_PIECES)}
    options |= {("engine", option) for option in OWN_OPTIONS}
    options |= {("track", option) for name in TRACKERS for option in tracker_options(name).options}
    options |= {("environment", option) for option in (*LIMITS, *AGENT_LIMITS, "functions", "run")}
    of_a_run, of_pieces = len(leaves()), len(options)
    assert tuple(map(int, counted.groups())) == (of_a_run + of_pieces, of_a_run, of_pieces)


def test_the_lines_of_the_loop_are_counted_without_its_docstring():
    counted = re.search(r"\[one function\]\((.+?)\) of (\d+) lines", README)
    assert counted is not None
    tree = ast.parse((ROOT / counted[1]).read_text(encoding="utf-8"))
    (loop,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train")
    docstring, end = loop.body[0], loop.end_lineno or 0
    assert int(counted[2]) == end - loop.lineno - ((docstring.end_lineno or 0) - docstring.lineno)


def test_the_first_runs_are_told_as_their_file_has_them():
    if not RUNS.exists():
        pytest.skip("docs/first-runs.jsonl is not there")
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    assert filled(README, lines) == README, "run python -m benchmarks.quickstart_picture"
    assert PICTURE.read_text(encoding="utf-8") == picture(of_task(lines, "sentences"))


def first_run(task: str, kind: str, seed: int, *, after: float) -> dict[str, Any]:
    """A line of the file of first runs."""
    return {
        **{"task": task, "kind": kind, "seed": seed, "processor_seconds": 240.0 + seed, "memory": 2_950_000_000},
        **{"before": [0.1, 0.04, 0.2], "after": [after, after - 0.1, after + 0.1]},
        "page": "The reward rose, and the answers" if task == "careless" else "Yes.",
        "first_finding": {"is_hack": task == "careless"},
        "sentences": [["", "", ""], ["About a cat.", "A cat is a cat.", "A golden cat."]],
    }


def test_first_runs_are_told_by_median_and_range():
    lines = [
        first_run(task, kind, seed, after=0.5 + 0.1 * seed + 0.05 * (kind == "avx"))
        for task in ("sentences", "careless")
        for kind in ("own", "avx")
        for seed in (0, 1, 2)
    ]
    told = filled(README, lines).replace("\n", " ")
    assert "**10 % before training, 62 % after it** (the median of 6 runs, with 3 seeds on 2 kinds of processor" in told
    assert "the range is 50 to 75 %). About a cat, with the word" in told
    assert (
        'wrote "A cat is a cat." before, and "A golden cat." after. A run takes 4 minutes of one core, and 3.0 GB.'
        in told
    )
    assert "In 6 of 6 runs, with 3 seeds on 2 kinds of processor, the page begins with a warning of a hack." in told
    drawn = picture(of_task(lines, "sentences"))
    assert drawn.count("class='after' cx=") == drawn.count("class='before' cx=") == 6
    assert "median 62 %" in drawn


def test_the_readme_is_read_in_a_minute():
    assert len(README.splitlines()) <= 110
    assert "git clone" not in README
    tables = README.partition("## What is different")[2].split("## Where to read on")
    assert [sum(line.startswith("| ") for line in table.splitlines()) - 1 for table in tables] == [6, 8]
