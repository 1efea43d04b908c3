"""Runs of several replicas: the same tokens as one process, and they end, and resume, together."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from kill_cases import assert_same
from run_cases import cold, outdo_, saved, steps_done, timeless, wait_until
from safetensors.torch import load_file
from test_workers import alive, ended, family

from outdo.observability.record.parquet import read
from outdo.storage.checkpoint import weights_hash

STEPS = 12
SETTINGS = (f"steps={STEPS}", "eval.every=6", "workers=1", "checkpoint.every=2", "optim.lr=1e-4")

DIVIDED, SEQUENCES = "cluster.shard=true", 'attention={name = "ulysses"}'

METHODS = {
    "grpo": (),
    "reference": ("train.objective.beta=0.1", "reference.sync.every=2", "train.passes=2"),
    "critic": ("train.objective=ppo", "train.advantage=gae"),
    "whole groups": ("train.objective=tpo", "train.minibatches=2"),
    "dynamic sampling": ("train.dynamic_sampling=2", "train.prompts=3"),
    "divided": (
        DIVIDED,
        "train.objective=grpo",
        "train.objective.beta=0.1",
        "train.advantage=gae",
        "reference.sync.every=4",
    ),
    "divided adapter": (
        DIVIDED,
        'train.adapter={name = "lora", rank = 4, alpha = 8, rslora = true}',
        "train.objective=grpo",
        "train.objective.beta=0.1",
        "train.advantage=gae",
        "reference.sync.every=4",
    ),
    "sequences": (
        SEQUENCES,
        "train.objective=grpo",
        "train.objective.beta=0.1",
        "train.advantage=gae",
        "train.gradient_checkpointing=true",
        "reference.sync.every=4",
    ),
    "sequences divided": (SEQUENCES, DIVIDED, "train.objective=gspo", "train.minibatches=2"),
    "sequences adapter": (
        SEQUENCES,
        'train.adapter={name = "lora", rank = 4, alpha = 8}',
        "train.objective=grpo",
        "train.objective.beta=0.1",
    ),
}


def weights(run: Path) -> dict[str, torch.Tensor]:
    files = (run / "checkpoints" / f"step_{saved(run)[-1]:06d}").glob("*model*.safetensors")
    return {name: weight for path in files for name, weight in load_file(path).items()}


def tokens(run: Path, step: int) -> list[list[int]]:
    return read(run, step).column("token_ids").to_pylist()


QUICK = ("critic", "divided", "divided adapter", "sequences")
"""The methods that every run of the tests tries; the others are for `make test-long`."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in METHODS]
)
def test_two_replicas_sample_the_same_tokens_and_learn_the_same_weights(home: Path, method: str):
    name = method.replace(" ", "-")
    settings = (*SETTINGS, *METHODS[method])
    of_one = [each for each in settings if each != SEQUENCES]
    outdo_(home, "train", "recipe.toml", f"run=./alone-{name}", *of_one)
    said, status = finished(cold(home, "train", "recipe.toml", f"run=./both-{name}", "cluster.replicas=2", *settings))
    assert status == 0, said
    alone, both = home / f"alone-{name}", home / f"both-{name}"
    for step in range(1, STEPS + 1):
        assert tokens(alone, step) == tokens(both, step)
    mine = weights(both)
    for key, value in weights(alone).items():
        assert (mine[key] - value).abs().max() <= 3e-6, key
    assert [line.keys() for line in timeless(alone)] == [line.keys() for line in timeless(both)]
    assert said.count("run folder:") == 1  # one replica prints
    assert (both / "report.html").exists()


def finished(command: "subprocess.Popen[str]") -> tuple[str, int]:
    status, said = ended(command)
    return said, status


def test_however_replicas_end_they_end_together_and_resume_exactly(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    by_torchrun = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "outdo"),
            *("train", "recipe.toml", "run=./undisturbed", "cluster.replicas=2", *SETTINGS),
        ],
        cwd=home, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert by_torchrun.returncode == 0, by_torchrun.stdout + by_torchrun.stderr
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run = home / "disturbed"
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", "cluster.replicas=2", *SETTINGS)
    for step, ending, expected in ((3, "launcher", -9), (7, "SIGTERM", 143)):
        said, status = ended_after(step, run, command, ending)
        assert status == expected, said
        assert not list(tmp_path.iterdir())
        assert step <= steps_done(run) < STEPS
        command = cold(home, "resume", str(run))
    said, status = finished(command)
    assert status == 0, said
    assert_same(run, home / "undisturbed")


def ended_after(step: int, run: Path, command: "subprocess.Popen[str]", ending: str) -> tuple[str, int]:
    """Kill the launcher of a run after a step, or send SIGTERM, and wait until no process is left.

    A replica that a signal has stopped ends with its launcher, too.
    """
    wait_until(lambda: steps_done(run) >= step, command)
    replicas = family(command.pid)
    assert len(replicas) >= 2
    if ending == "SIGTERM":
        command.terminate()
    else:
        os.kill(second_of(replicas), signal.SIGSTOP)
        command.kill()
    said, status = finished(command)
    wait_until(lambda: not any(map(alive, replicas)), seconds=600)
    return said, status


def test_replicas_with_parts_of_the_models_resume_exactly(home: Path):
    settings = (*SETTINGS, "cluster.replicas=2", *METHODS["divided"])
    whole = undisturbed(home, "both-divided", settings)
    command = cold(home, "train", "recipe.toml", "run=./divided-killed", *settings)
    run = home / "divided-killed"
    wait_until(lambda: steps_done(run) >= 4, command)
    os.kill(second_of(family(command.pid)), signal.SIGKILL)
    said, status = finished(command)
    assert status == 75
    assert "replica 1 of 2 was ended by SIGKILL" in said
    assert "each replica holds a part of the weights" in said
    command = cold(home, "resume", str(run))
    wait_until(lambda: steps_done(run) >= 8, command)
    command.terminate()
    said, status = finished(command)
    assert status == 143, said
    assert saved(run)[-1] == steps_done(run) < STEPS  # all of them finish the step, and save it together
    said, status = finished(cold(home, "resume", str(run)))
    assert status == 0, said
    assert_same(run, whole)
    last = weights(run)
    outdo_(home, "export", run, home / "exported-divided")
    for path in (home / "exported-divided").glob("*.safetensors"):
        for name, weight in load_file(path).items():
            assert last.pop(name).equal(weight)
    assert not last
    alone = ("cluster.replicas=1", "cluster.shard=false")
    said = outdo_(home, "resume", run, f"steps={STEPS + 1}", *alone)
    assert "can differ in their last bits" in said
    assert saved(run)[-1] == STEPS + 1


def undisturbed(home: Path, name: str, settings: tuple[str, ...]) -> Path:
    """Return a run that another test has made, unless this one runs alone."""
    if not (home / name).exists():
        said, status = finished(cold(home, "train", "recipe.toml", f"run=./{name}", *settings))
        assert status == 0, said
    return home / name


def test_replicas_with_parts_of_a_base_save_after_an_error_and_resume_exactly(home: Path):
    base, settings = weights_hash(home / "model"), (*SETTINGS, "cluster.replicas=2", *METHODS["divided adapter"])
    whole, run = undisturbed(home, "both-divided-adapter", settings), home / "divided-adapter-killed"
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", *settings)
    wait_until(lambda: steps_done(run) >= 5, command)
    os.kill(second_of(family(command.pid)), signal.SIGKILL)
    said, status = finished(command)
    assert status == 75
    assert "saved after step" in said  # the adapter is whole on each replica
    said, status = finished(cold(home, "resume", str(run)))
    assert status == 0, said
    assert_same(run, whole)
    outdo_(home, "export", run, home / "exported-divided-adapter")
    exported = load_file(home / "exported-divided-adapter" / "adapter_model.safetensors")
    assert all(exported[name].equal(weight) for name, weight in weights(run).items())
    outdo_(home, "resume", run, f"steps={STEPS + 1}", "cluster.replicas=1", "cluster.shard=false")
    assert saved(run)[-1] == STEPS + 1
    assert weights_hash(home / "model") == base


def test_replicas_that_share_sequences_resume_exactly(home: Path):
    settings = (*SETTINGS, "cluster.replicas=2", *METHODS["sequences"])
    whole, run = undisturbed(home, "both-sequences", settings), home / "sequences-killed"
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", *settings)
    wait_until(lambda: steps_done(run) >= 5, command)
    os.kill(second_of(family(command.pid)), signal.SIGKILL)
    said, status = finished(command)
    assert status == 75
    assert "attention: shared, each sequence by 2 replicas" in said
    assert "saved after step" in said  # all weights are whole on each replica
    said, status = finished(cold(home, "resume", str(run)))
    assert status == 0, said
    assert_same(run, whole)


@pytest.mark.long
def test_a_run_whose_replicas_shared_sequences_goes_on_in_one_process(home: Path):
    run = undisturbed(home, "both-sequences", (*SETTINGS, "cluster.replicas=2", *METHODS["sequences"]))
    said = outdo_(home, "resume", run, f"steps={STEPS + 1}", "cluster.replicas=1", "attention=auto")
    assert "can differ in their last bits" in said
    assert saved(run)[-1] == STEPS + 1


def second_of(processes: list[int]) -> int:
    """Return the replica whose rank is 1."""
    return next(each for each in processes if b"\0RANK=1\0" in Path(f"/proc/{each}/environ").read_bytes())


def test_more_processes_than_the_recipe_names_are_refused(home: Path):
    said = subprocess.run(
        [sys.executable, "-m", "outdo", "train", "recipe.toml", "run=./other-number", "cluster.replicas=3"],
        cwd=home, env=os.environ | {"RANK": "0", "WORLD_SIZE": "2"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert said.returncode == 2
    assert "cluster.replicas = 3, but 2 processes were started" in said.stderr


def test_a_mistake_in_the_recipe_is_printed_once(home: Path):
    said, status = finished(cold(home, "train", "recipe.toml", "run=./no", "cluster.replicas=2", "data.path=no.jsonl"))
    assert status == 2
    assert said.count("no.jsonl") == 1


def test_a_replica_that_is_ten_times_slower_delays_the_run_changes_nothing_and_is_named(home: Path):
    run = home / "slow-replica"
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", "cluster.replicas=2", *SETTINGS)
    wait_until(lambda: steps_done(run) >= 1, command)
    slow = second_of(family(command.pid))
    while command.poll() is None:  # of a tenth of a second it has a hundredth
        for number, seconds in ((signal.SIGSTOP, 0.09), (signal.SIGCONT, 0.01)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(slow, number)
            time.sleep(seconds)
    said, status = finished(command)
    assert status == 0, said
    assert_same(run, undisturbed(home, "both-grpo", (*SETTINGS, "cluster.replicas=2")))
    assert "replica 1 takes" in outdo_(home, "doctor", run)
