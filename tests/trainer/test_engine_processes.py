"""A run whose built-in engine samples in processes of its own: the run that it is without them, bit for bit."""

from pathlib import Path

import pytest
from kill_cases import assert_same
from run_cases import Command, alive, family, metrics, outdo_, steps_done, wait_until


def engine(processes: int) -> str:
    return f'engine={{name = "builtin", processes = {processes}}}'


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_tokens_metrics_and_weights_are_those_of_sampling_in_the_trainer(home: Path, six_steps: Path, processes: int):
    run = home / f"processes-{processes}"
    said = outdo_(home, "train", "recipe.toml", f"run=./{run.name}", "steps=6", engine(processes))
    assert f"engine: processes on {', '.join(['cpu'] * processes)}, threads of each: 1" in said
    assert "correction" not in said
    assert_same(run, six_steps)
    assert {line["engine/delivery_bytes"] for line in metrics(run)} == {4 * 35520}


def test_no_process_is_left_when_the_trainer_is_killed(home: Path):
    run = home / "killed-trainer"
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", engine(2))
    wait_until(lambda: steps_done(run) >= 1, command)
    others = family(command.pid)
    assert len(others) >= 3  # the fork server, and two processes
    command.process.kill()
    command.wait()
    wait_until(lambda: not any(map(alive, others)))


def test_a_device_that_is_missing_is_one_sentence_before_a_model_is_loaded(home: Path):
    setting = 'engine={name = "builtin", processes = 1, devices = ["cuda:63"]}'
    for command in ("check", "train"):
        said = outdo_(home, command, "recipe.toml", "run=./nowhere", setting, status=2)
        assert "engine.devices: this machine has no cuda:63; it has cpu" in said
    assert not (home / "nowhere").exists()
