"""A run of two processes: killed or interrupted it goes on as if nothing had happened, and leaves nobody behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import Command, alive, cold, command_line, family, metrics, outdo_, steps_done, wait_until

import outdo
from outdo.config.file import load

TWO = ("threads=2", "workers=2", "steps=12", "checkpoint.every=2")


def ended(command: "subprocess.Popen[str]") -> tuple[int, str]:
    said, _ = command.communicate(timeout=600)
    return command.returncode, said


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    """The run that nothing happened to."""
    said = outdo_(home, "train", "recipe.toml", "run=./two", *TWO)
    assert "workers: 2, threads per worker: 1 (set in the recipe)" in said
    return home / "two"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a path that is short enough for the socket of the fork server."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="o") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_a_run_with_two_workers_that_is_killed_and_interrupted_resumes_exactly(home, whole, temporary: Path):
    run = home / "two-disturbed"
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", *TWO)
    for step, number, expected in ((3, signal.SIGKILL, -signal.SIGKILL), (7, signal.SIGINT, 130)):
        ended_by(number, command, run, step)
        assert command.wait() == expected, command.said
        assert not list(temporary.glob("pymp-*"))
        assert step <= steps_done(run) < 12
        command = Command(home, "resume", run)
    assert command.wait() == 0, command.said
    assert_same(run, whole)


def ended_by(number: int, command: Command, run: Path, step: int) -> None:
    """Send a signal after a step, and wait until no process is left; SIGINT to all of them, as Ctrl-C does."""
    wait_until(lambda: steps_done(run) >= step, command)
    assert command.running, command.said
    others = family(command.pid)
    assert others, "there should be a second process"
    for process in [command.pid] if number == signal.SIGKILL else [command.pid, *others]:
        os.kill(process, number)
    wait_until(lambda: not command.running and not any(alive(process) for process in others))


def test_the_chosen_workers_are_written_into_the_recipe_of_the_run(whole):
    recipe = load(whole / "recipe.toml", [])
    assert (recipe.threads, recipe.workers) == (2, 2)


def test_the_times_cover_all_processes(whole):
    for line in metrics(whole):
        parts = [value for name, value in line.items() if name.startswith("time/")]
        own = sum(parts) - line.get("time/evaluate", 0.0) - line.get("time/save", 0.0)
        assert own == pytest.approx(line["seconds"], rel=1e-6)


def test_a_temporary_folder_with_a_path_too_long_for_a_socket_is_one_sentence(own_home, monkeypatch):
    far = own_home / ("x" * 100)
    far.mkdir()
    monkeypatch.setenv("TMPDIR", str(far))
    status, said = ended(cold(own_home, "train", "recipe.toml", "run=./run", *TWO))
    assert status == 75
    assert "a worker process cannot be started: AF_UNIX path too long" in said
    assert f"{far}" in said.replace("\n", "")
    assert "set TMPDIR to a shorter one" in " ".join(said.split())
    assert "Traceback" not in said


QUICK = "import outdo.distributed.process as p; p.SILENCE = 5.0; import outdo.cli.main as m; m.main()"


def test_a_worker_that_hangs_ends_the_run(own_home):
    run = own_home / "run"
    command = subprocess.Popen(
        [sys.executable, "-c", QUICK, "train", "recipe.toml", "run=./run", *TWO, "checkpoint.every=50"],
        cwd=own_home,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(outdo.__file__).parent.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: steps_done(run) >= 2, command)
    server = next(each for each in family(command.pid) if b"forkserver" in command_line(each))
    (worker,) = family(server)
    with suppress(ProcessLookupError):
        while command.poll() is None:  # Linux wakes it when the trainer reads a sign of life that it gave before
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.05)
    status, said = ended(command)
    assert status == 75, said
    assert f"worker process {worker} gave no sign of life for 5 s, and was killed" in said
    assert "Traceback" not in said
