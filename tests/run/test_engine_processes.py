"""A run whose built-in engine samples in processes of its own: the run that it is without them, bit for bit."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import Command, cold, ended, family, metrics, outdo_, steps_done, wait_for_end, wait_until


def engine(processes: int) -> str:
    return f'engine={{name = "builtin", processes = {processes}}}'


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_tokens_metrics_and_weights_are_those_of_sampling_in_the_trainer(home: Path, six_steps: Path, processes: int):
    run = home / f"processes-{processes}"
    said = outdo_(home, "train", "recipe.toml", f"run=./{run.name}", "steps=6", "--verbose", engine(processes))
    assert f"engine: processes on {', '.join(['cpu'] * processes)}, threads of each: 1" in said
    assert "correction" not in said
    assert_same(run, six_steps)
    assert {line["engine/delivery_bytes"] for line in metrics(run)} == {4 * 35520}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a path that is short enough for the socket of the fork server."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="o") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.mark.release
def test_no_process_and_no_folder_is_left_when_the_trainer_is_killed(home: Path, temporary: Path):
    run = home / "killed-trainer"
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", "eval.every=0", "data.eval_path=", engine(1))
    wait_until(lambda: steps_done(run) >= 1, command)
    others = family(command.pid)
    assert len(others) >= 2  # the fork server, and a process
    command.process.kill()
    command.wait()
    wait_for_end(others)
    assert not list(temporary.glob("pymp-*"))


@pytest.mark.release
def test_a_temporary_folder_with_a_path_too_long_for_a_socket_is_one_sentence(own_home: Path, monkeypatch):
    far = own_home / ("x" * 100)
    far.mkdir()
    monkeypatch.setenv("TMPDIR", str(far))
    status, said = ended(cold(own_home, "train", "recipe.toml", "run=./run", engine(1)))
    assert status == 75, said
    assert "a worker process cannot be started: AF_UNIX path too long" in said
    assert f"{far}" in said.replace("\n", "")
    assert "set TMPDIR to a shorter one" in " ".join(said.split())
    assert "Traceback" not in said


def test_a_device_that_is_missing_is_one_sentence_before_a_model_is_loaded(home: Path):
    setting = 'engine={name = "builtin", processes = 1, devices = ["cuda:63"]}'
    said = outdo_(home, "train", "recipe.toml", "run=./nowhere", setting, status=2)
    assert "engine.devices: this machine has no cuda:63; it has cpu" in said
    assert not (home / "nowhere").exists()
