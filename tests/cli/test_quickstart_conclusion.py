"""How the quickstart ends: the run beside the recorded ones, and what a run says that did not work out."""

import json
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console

from outdo.extras.quickstart import sentences
from outdo.extras.quickstart.command import again, write_data, write_recipe
from outdo.extras.quickstart.conclusion import disappointment, result_table
from outdo.extras.quickstart.recorded import Recorded, Spread, recorded_runs
from outdo.extras.quickstart.task import Task
from outdo.run.assemble.engines import named_engine
from outdo.utils.text import dotted

FILE = Path(__file__).parents[2] / "docs/first-runs.jsonl"
LINES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
TASKS = {"sentences": sentences.TASK, "careless": sentences.CARELESS_TASK}


def summary(before: tuple[float, float, float], after: tuple[float, float, float], kind: str = "greedy") -> Any:
    """What a run keeps of its result: shares of right answers with the ends of their intervals."""
    ends = ("", "_low", "_high")
    return {
        "steps": 9,
        "before": dict(zip((f"{kind}{end}" for end in ends), before, strict=True)),
        "after": dict(zip((f"{kind}{end}" for end in ends), after, strict=True)),
    }


WORKED = summary((0.08, 0.03, 0.17), (0.5, 0.38, 0.62))


def printed(recorded: Recorded | None) -> list[list[str]]:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(result_table(WORKED, recorded))
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in captured.get().splitlines()]


def test_the_last_table_shows_the_run_beside_median_and_range_of_the_recorded_ones_in_80_columns() -> None:
    start = Spread(lowest=0.08, median=0.08, highest=0.08)
    recorded = Recorded(runs=16, processors=2, before=start, after=Spread(lowest=0.4, median=0.55, highest=0.7))
    rows = printed(recorded)
    assert ["this run, greedy", "8.0% (3.0% to 17.0%)", "50.0% (38.0% to 62.0%)"] in rows
    assert ["median of 16 runs", "8.0%", "55.0%"] in rows
    assert ["lowest to highest", "8.0%", "40.0% to 70.0%"] in rows
    assert ["recorded: 16 runs with other seeds, on 2 kinds of processor, greedy answers"] in rows
    assert not any("median" in row[0] for row in printed(None))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (WORKED, ""),
        (summary((0.1, 0.05, 0.2), (0.3, 0.21, 0.45)), "less than 25 points more"),
        (summary((0.125, 0.05, 0.281), (0.4, 0.28, 0.57)), "the 95% intervals overlap"),
        (summary((0.5, 0.3, 0.7), (0.1, 0.0, 0.2)), "10.0% are after: fewer than before"),
        (
            summary((0.125, 0.05, 0.281), (0.281, 0.156, 0.454), "sampled"),
            "12.5% of the held-out questions were right before, 28.1% are after: "
            "less than 25 points more and the 95% intervals overlap",
        ),
        (summary((0.2, 0.1, 0.3), (0.9, 0.8, 1.0), "greedy_reward"), ""),  # nothing says what is right
    ],
)
def test_a_run_that_gained_too_little_says_so(result: Any, said: str) -> None:
    why = disappointment(result)
    assert why.startswith("this run did not work out: ") if said else why == ""
    assert why.endswith(said)


def test_another_run_is_the_same_command_with_another_seed() -> None:
    home = Path("quickstart")
    assert again("sentences", False, home, 1) == "quickstart --seed 1"
    assert again("sentences", True, home, 3) == "quickstart --careless --seed 3"
    assert again("sums", False, Path("my runs"), 1) == "quickstart --task sums --folder 'my runs' --seed 1"


@pytest.mark.parametrize("name", TASKS)
def test_the_numbers_of_the_recorded_runs_are_those_of_their_file(name: str) -> None:
    lines = [line for line in LINES if line["task"] == name]
    recorded = recorded_runs(name)
    assert recorded
    assert recorded.runs == len(lines)
    assert recorded.processors == len({line["kind"] for line in lines})
    for when in ("before", "after"):
        shares = [line[when][0] for line in lines]
        spread = getattr(recorded, when)
        assert (spread.lowest, spread.highest) == (min(shares), max(shares))
        assert spread.median == pytest.approx(median(shares), abs=5e-5)


@pytest.mark.parametrize("name", TASKS)
def test_the_recorded_runs_have_the_settings_that_the_command_has(name: str, tmp_path: Path) -> None:
    task: Task = TASKS[name]
    paths = write_data(tmp_path, 0, task)
    written = write_recipe(tmp_path / "run-1.toml", task, tmp_path, paths, 0, named_engine(None))
    settings = dict(dotted(tomllib.loads(written.read_text(encoding="utf-8"))))
    for line in LINES:
        if line["task"] == name:
            assert {key: settings[key] for key in line["settings"]} == line["settings"], line["seed"]
