"""After a fault of the machine a run is started again, and ends as the one that nothing happened to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_replicas import main, replicas_of
from kill_cases import assert_same
from run_cases import (
    Command,
    alive,
    cold,
    family,
    outdo_,
    steps_done,
    together,
    wait_until,
)
from test_replicated_runs import finished, second_of

from outdo.config.file import load
from outdo.config.paths import with_absolute_paths
from outdo.config.resume import overrides_between

AGAIN = "starting again from the newest checkpoint"
SETTINGS = ("steps=12", "eval.every=6", "checkpoint.every=2", "cluster.replicas=2", "cluster.timeout=20")


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    together(home, "train", "recipe.toml", "run=./not-disturbed", *SETTINGS)
    return home / "not-disturbed"


@pytest.mark.release
def test_replicas_that_are_killed_or_frozen_start_again_and_change_nothing(home: Path, undisturbed: Path):
    """One restart suffices for both, as steps are saved in between."""
    run = home / "restarted"
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", *SETTINGS, "--restarts", "1", main=main)
    seen = disturbed_after(3, run, command, signal.SIGKILL) + disturbed_after(7, run, command, signal.SIGSTOP)
    assert command.wait() == 0, command.said
    said = command.said
    assert f"replica 1 of 2 was ended by SIGKILL; {AGAIN} (1 of 1)" in said
    assert f"replica 1 of 2 does not answer; {AGAIN} (1 of 1)" in said
    assert said.count(AGAIN) == 2
    assert not any(map(alive, seen))
    assert_same(run, undisturbed)


def disturbed_after(step: int, run: Path, command: Command, number: int) -> list[int]:
    """Kill or freeze the second replica after a step, and wait until it is gone; return the processes of the run."""
    wait_until(lambda: steps_done(run) >= step, command)
    assert command.running, command.said
    processes, (_, second) = family(command.pid), replicas_of(command.pid)
    os.kill(second, number)
    wait_until(lambda: not alive(second), command)
    return processes


@pytest.mark.release
def test_torchrun_starts_a_killed_rank_again_and_the_run_goes_on(home: Path, undisturbed: Path):
    run = home / "by-torchrun"
    command = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"),
            *("-m", "outdo", "train", "recipe.toml", f"run=./{run.name}", *SETTINGS, "--resume"),
        ],
        cwd=home, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_until(lambda: steps_done(run) >= 5, command)
    os.kill(second_of(family(command.pid)), signal.SIGKILL)
    said, status = finished(command)
    assert status == 0, said
    assert "resumed after step" in said
    assert_same(run, undisturbed)


@pytest.mark.long
def test_one_process_that_is_killed_is_started_again_and_a_signal_is_no_fault(home: Path, six_steps: Path):
    run = home / "alone-again"
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", "steps=6", "--restarts", "1")
    wait_until(lambda: steps_done(run) >= 2, command)
    os.kill(family(command.pid)[0], signal.SIGKILL)
    wait_until(lambda: len((run / "history.jsonl").read_text().splitlines()) == 2)  # the second start has begun
    command.terminate()
    said, status = finished(command)
    assert status == 143, said
    assert f"the run was ended by SIGKILL; {AGAIN} (1 of 1)" in said
    assert said.count(AGAIN) == 1
    outdo_(home, "resume", run.name)
    assert_same(run, six_steps)


def test_a_run_that_dies_each_time_before_its_first_checkpoint_ends_with_the_status_of_a_machine_fault(own_home: Path):
    (own_home / "score.py").write_text("import os\ndef score(completion):\n    os.kill(os.getppid(), 9)\n")
    said, status = finished(cold(own_home, "train", "recipe.toml", "run=./run", "--restarts", "1"))
    assert status == 75, said
    assert said.count(AGAIN) == 1
    assert "outdo: the run was ended by SIGKILL" in said


def test_a_mistake_of_the_user_is_not_repeated(home: Path):
    said, status = finished(cold(home, "train", "recipe.toml", "run=./new", "data.path=no.jsonl", "--restarts", "3"))
    assert status == 2, said
    assert AGAIN not in said


def test_train_with_resume_continues_the_run_in_the_folder_with_the_settings_that_are_given(own_home: Path):
    settings = ("run=./run", "eval.every=0", "--resume")
    outdo_(own_home, "train", "recipe.toml", *settings, "steps=2")
    said = outdo_(own_home, "train", "recipe.toml", *settings, "steps=4")
    assert "resumed after step 2 of 4" in said
    assert "steps: 2 in the saved run, 4 now" in said
    said = outdo_(own_home, "train", "recipe.toml", *settings, "steps=4", "optim.lr=1e-5", status=2)
    assert "optim.lr: 0.001 in the saved run, 1e-05 now; this changes the run" in said
    assert "name the run" in outdo_(own_home, "train", "recipe.toml", "--resume", status=2)


def test_settings_that_outdo_has_chosen_stay_as_they_are(six_steps: Path):
    saved = load(six_steps / "recipe.toml")
    chosen = {"run": None, "device": "auto", "threads": None, "weights": "auto"}
    assert overrides_between(saved, saved.model_copy(update=chosen)) == []
    assert overrides_between(saved, saved.model_copy(update={"seed": 3, "steps": 9})) == ["seed=3", "steps=9"]


def test_a_setting_that_the_recipe_names_counts_also_if_it_is_the_default(six_steps: Path):
    saved = load(six_steps / "recipe.toml", ["eval.every=3", "record.every=2", "track=tensorboard"])
    needed = ["model=m", "data.path=t.jsonl"]

    def changed(*settings: str) -> set[str]:
        given = load(None, [*needed, *settings])
        may_change = ("steps=", "eval.every=", "record.every=", "track=", "checkpoint.every=")
        found = overrides_between(saved, with_absolute_paths(given), given=given)
        return {each for each in found if each.startswith(may_change)}

    assert changed() == set()
    assert changed("steps=100", "eval.every=0", "record.every=1") == {"steps=100", "eval.every=0", "record.every=1"}
    assert changed("track=[]") == {"track=[]"}
