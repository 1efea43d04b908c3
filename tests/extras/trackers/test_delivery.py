"""The queue in front of a tracker, without a run."""

import time
from pathlib import Path

import pytest
from run_cases import alive, wait_until

from outdo.extras.trackers.delivery import MOST_WAITING, Delivery, Trackers
from outdo.extras.trackers.process import TrackerSettings


def settings(spec: str, **changes) -> TrackerSettings:
    options = {"function": spec}
    common = {"completions": 0, "deadline": 600.0} | changes
    return TrackerSettings(name="mine", spec="outdo.extras.trackers.hooks:hook", options=options, **common)


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(
        "import pathlib, time\n"
        "def hang(step):\n    time.sleep(3600)\n"
        "def spawn(step):\n"
        "    import subprocess\n"
        "    child = subprocess.Popen(['sleep', '3600'])\n"
        "    pathlib.Path(__file__).with_name('child').write_text(str(child.pid))\n"
        "    time.sleep(3600)\n"
        "def note(step):\n    pathlib.Path(__file__).with_name('noted').open('a').write(f'{step} ')\n"
    )
    return path


def test_a_tracker_that_is_behind_loses_steps_and_never_makes_the_run_wait(hooks, tmp_path):
    delivery = Delivery(settings(f"{hooks}:hang"), tmp_path, print, after=0)
    for step in range(10 * MOST_WAITING):
        delivery.log(step, {"reward": 0.0}, [])
    assert delivery._queue.qsize() <= MOST_WAITING
    lost = delivery.close(time.monotonic())
    assert lost is not None
    assert f"mine: {10 * MOST_WAITING} of {10 * MOST_WAITING} steps were not delivered" in lost


def test_what_is_in_the_queue_arrives_before_the_end(hooks, tmp_path):
    trackers = Trackers([settings(f"{hooks}:note")], tmp_path, print)
    trackers.begin(after=0)
    for step in range(20):
        trackers.log(step, {"reward": 0.0, "kl": float("nan")})
    trackers.close()
    assert (tmp_path / "noted").read_text().split() == [str(step) for step in range(20)]


def test_a_killed_tracker_leaves_no_process(hooks, tmp_path):
    trackers = Trackers([settings(f"{hooks}:spawn")], tmp_path, print)
    trackers.begin(after=0)
    trackers.log(1, {})
    child = tmp_path / "child"
    deadline = time.monotonic() + 600
    while not (child.exists() and child.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    trackers.close(wait=False)
    wait_until(lambda: not alive(int(child.read_text())), seconds=600)


def test_a_tracker_that_cannot_be_opened_is_reported_at_once(tmp_path):
    said: list[str] = []
    trackers = Trackers([settings(f"{tmp_path}/missing.py:note")], tmp_path, said.append)
    trackers.begin(after=0)
    deadline = time.monotonic() + 600
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "mine: does not track this run: UserError" in said[0]
    trackers.log(1, {})
    trackers.close()
    assert "mine: 1 of 1 steps were not delivered: UserError" in said[1]
