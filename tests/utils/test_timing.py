"""A clock's seconds: every moment belongs to one name."""

import ast
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import outdo
from outdo.utils import timing
from outdo.utils.timing import Clock, span


@pytest.fixture
def tick(monkeypatch):
    """Let so many seconds pass."""
    now = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])

    def pass_(seconds: float) -> None:
        now[0] += seconds

    return pass_


def test_the_time_of_an_inner_span_is_not_counted_in_the_outer_one(tick):
    with Clock() as clock:
        tick(1)
        with span("sample"):
            tick(2)
            with span("reward"):
                tick(4)
            tick(8)
        tick(16)
    assert clock.seconds == {"idle": 17, "sample": 10, "reward": 4}


def test_an_open_span_continues_in_the_next_lap(tick):
    with Clock() as clock, span("sample"):
        tick(1)
        assert clock.lap() == {"idle": 0, "sample": 1}
        tick(2)
        assert clock.lap() == {"sample": 2}


def test_without_a_clock_and_in_another_thread_a_span_counts_nothing(tick):
    def work() -> None:
        with span("record"):
            time.sleep(0)

    work()
    with Clock() as clock, ThreadPoolExecutor(1) as other:
        other.submit(work).result()
    assert clock.seconds == {"idle": 0}


def test_no_time_is_measured_by_a_clock_that_can_jump():
    """`time.time` and `datetime.now` follow the clock of the machine, which a person or a server may set."""
    found = [
        (str(path), node.lineno)
        for path in Path(outdo.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "datetime.now"))
        or (isinstance(node, ast.ImportFrom) and node.module == "time" and "time" in [each.name for each in node.names])
    ]
    # when a run started, its age, the time of a metric; what is compared between machines; the date that prompts have
    of_the_machine = {"provenance.py", "runs.py", "mlflow.py", "cluster_check.py", "template_header.py"}
    assert {Path(path).name for path, _ in found} == of_the_machine, found
    assert len(found) == len(of_the_machine), found
