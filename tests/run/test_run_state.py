"""A run's folder alone tells whether it is running, finished, stopped or killed, and at which step."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outdo.run.checkpoints.run_state import run_state
from outdo.run.folder.run_folder import RunFolder
from outdo.utils.errors import OutdoError

HOLD = """
import sys, time
from pathlib import Path
from outdo.run.folder.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
for step in range(1, 17):
    folder.append_metrics(step, {"reward": 0.5})
print("ready", flush=True)
time.sleep(600)
"""


def write(run: Path, *, steps: int, of: int | None) -> Path:
    with RunFolder(run) as folder:
        if of is not None:
            folder.recipe.write_text(f"steps = {of}\n")
        for step in range(1, steps + 1):
            folder.append_metrics(step, {"reward": 0.5})
    return run


@pytest.mark.parametrize(
    ("steps", "of", "phrase"),
    [
        (40, 40, "finished after 40 steps"),
        (16, 40, "stopped at step 16 of 40"),
        (0, 40, "stopped at step 0 of 40"),
        (7, None, "recorded up to step 7"),
    ],
)
def test_a_run_that_ended_in_order_is_finished_or_stopped(tmp_path, steps, of, phrase):
    assert str(run_state(write(tmp_path / "run", steps=steps, of=of))) == phrase


def test_a_run_is_running_until_its_process_is_killed(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("steps = 40\n")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert str(run_state(run)) == "running at step 16 of 40"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert str(run_state(run)) == "killed at step 16 of 40"


def test_a_run_that_an_error_has_ended_has_failed_with_its_message_until_it_goes_on(tmp_path):
    run = write(tmp_path / "run", steps=16, of=40)
    for error, message in ((OutdoError("no space"), "no space"), (ValueError("a shape"), "ValueError: a shape")):
        with RunFolder(run) as folder:
            folder.keep_failure(error)
        state = run_state(run)
        assert (str(state), state.error) == ("failed at step 16 of 40", message)
    with RunFolder(run) as folder:
        folder.forget_failure()
    assert (str(run_state(run)), run_state(run).error) == ("stopped at step 16 of 40", None)


def test_a_folder_without_a_run_has_no_step(tmp_path):
    state = run_state(tmp_path)
    assert (state.kind, state.step, state.steps) == ("recorded", 0, None)
