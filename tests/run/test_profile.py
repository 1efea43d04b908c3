"""Where the time of a run goes: in every line of metrics, in a table, and in a trace."""

import gzip
import json
import math

import pytest
from run_cases import metrics, outdo_

from outdo.extras.profiler.watcher import time_table

ALWAYS = {"sample", "reward", "forward", "backward", "optimiser", "record", "idle"}


def spans(line):
    return {name.removeprefix("time/"): value for name, value in line.items() if name.startswith("time/")}


@pytest.fixture(scope="module")
def profiled(home, tmp_path_factory):
    """A run of six steps with a trace, and what it said."""
    run = tmp_path_factory.mktemp("profiled") / "run"
    how = ("steps=6", "eval.every=3", "checkpoint.every=2", "train.minibatches=2", "train.objective=grpo")
    return run, outdo_(home, "train", "recipe.toml", f"run={run}", *how, "--profile")


def nested(events):
    """Whether each of a thread's events ends before the one that it began in: viewers stack them."""
    open_until = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        if open_until and end > open_until[-1] + 1e-3:  # microseconds, rounded
            return False
        open_until.append(end)
    return True


def test_the_spans_of_every_step_add_up_to_its_seconds(profiled):
    lines = metrics(profiled[0])
    for line in lines:
        within = {name: value for name, value in spans(line).items() if name not in ("evaluate", "save")}
        assert set(within) - {"copy"} == ALWAYS | {"old", "reference"}  # no copy of a step with a checkpoint
        assert math.isclose(sum(within.values()), line["seconds"], rel_tol=1e-9)
        assert all(value >= 0 for value in within.values())


def test_an_evaluation_is_counted_in_its_own_line_and_a_checkpoint_in_the_next(profiled):
    lines = metrics(profiled[0])
    assert [line["step"] for line in lines if "time/evaluate" in line] == [3, 6]
    assert {3, 5} <= {line["step"] for line in lines if "time/save" in line}


def test_the_trace_has_two_steps_with_their_spans(profiled):
    events = json.loads(gzip.decompress((profiled[0] / "profile/trace.json.gz").read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2
    assert {"sample", "reward", "old", "reference", "forward", "backward", "optimiser", "record"} <= set(names)
    own = [event for event in events if event.get("cat") in ("user_annotation", "cpu_op") and event["ph"] == "X"]
    assert all(nested([event for event in own if event["tid"] == tid]) for tid in {event["tid"] for event in own})
    assert "profile/trace.json.gz; open it at ui.perfetto.dev" in profiled[1].replace("\n", "")


def test_the_table_names_every_span_and_the_step(profiled):
    said = profiled[1]
    assert "where the step went" in said
    rows = [line.split()[0] for line in said.splitlines() if line.strip()]
    assert {*ALWAYS, "evaluate", "save", "step"} <= set(rows)


def test_a_run_that_is_too_short_for_a_trace_reports_it(home, tmp_path):
    said = outdo_(home, "train", "recipe.toml", f"run={tmp_path / 'run'}", "steps=2", "--profile")
    assert "too few steps for a trace" in said
    assert not (tmp_path / "run/profile/trace.json.gz").exists()


def test_lines_without_times_have_no_table():
    assert time_table([{"seconds": 1.0}]) is None
