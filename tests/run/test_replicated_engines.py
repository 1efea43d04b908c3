"""Runs of several replicas beside an engine of their own: the tokens of one process with that engine."""

import os
import signal
from pathlib import Path

import pytest
from forked_replicas import main
from kill_cases import assert_same, newest
from run_cases import (
    Command,
    cold,
    command_line,
    family,
    metrics,
    outdo_,
    steps_done,
    timeless,
    wait_for_end,
    wait_until,
)
from test_replicated_runs import finished, second_of, tokens, weights

STEPS = 8
SETTINGS = (f"steps={STEPS}", "eval.every=4", "checkpoint.every=2", "optim.lr=1e-4")
DIVIDED = ("cluster.replicas=2", "cluster.shard=true")


def engine(processes: int) -> str:
    return f'engine={{name = "builtin", processes = {processes}}}'


@pytest.mark.parametrize(
    ("name", "settings", "processes"),
    [
        pytest.param("divided", DIVIDED, 1, marks=pytest.mark.release),
        pytest.param("whole", ("cluster.replicas=2", "train.objective.beta=0.1"), 2, marks=pytest.mark.long),
        pytest.param("divided-adapter", (*DIVIDED, "train.adapter=lora"), 1, marks=pytest.mark.long),
    ],
)
def test_replicas_beside_an_engine_train_as_one_process_also_after_it_is_killed(
    home: Path, name: str, settings: tuple[str, ...], processes: int
):
    alone, both = home / f"engine-alone-{name}", home / f"engine-both-{name}"
    own = [each for each in settings if not each.startswith("cluster.")]
    outdo_(home, "train", "recipe.toml", f"run=./{alone.name}", *SETTINGS, *own, engine(processes))
    arguments = ("train", "recipe.toml", f"run=./{both.name}", "--verbose", *SETTINGS, *settings, engine(processes))
    command = Command(home, *arguments, main=main)
    wait_until(lambda: steps_done(both) >= 2, command)
    started = family(command.pid)
    os.kill(sampling_process(command.pid), signal.SIGKILL)
    assert command.wait() == 0, command.said
    said = command.said
    assert f"engine: processes on {', '.join(['cpu'] * processes)}" in said
    assert said.count("the engine is restarted") == 1  # one replica prints
    wait_for_end(started)
    for step in range(1, STEPS + 1):
        assert tokens(alone, step) == tokens(both, step)
    mine = weights(both)
    for key, value in weights(alone).items():
        assert (mine[key] - value).abs().max() <= 3e-6, key
    assert [line.keys() for line in timeless(alone)] == [line.keys() for line in timeless(both)]
    assert metrics(both)[-1]["engine/restarts"] == 1
    assert metrics(both)[-1]["engine/delivery_bytes"] == metrics(alone)[-1]["engine/delivery_bytes"]


@pytest.mark.long
@pytest.mark.parametrize("killed", ["launcher", "second replica"])
def test_replicas_beside_an_engine_that_are_killed_resume_exactly(home: Path, killed: str):
    whole, run = home / "engine-undisturbed", home / f"engine-killed-{killed[:6]}"
    settings = (*SETTINGS, *DIVIDED, engine(1))
    if not whole.exists():
        said, status = finished(cold(home, "train", "recipe.toml", f"run=./{whole.name}", *settings))
        assert status == 0, said
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", *settings)
    wait_until(lambda: steps_done(run) >= 4, command)
    processes = family(command.pid)
    os.kill(command.pid if killed == "launcher" else second_of(processes), signal.SIGKILL)
    said, status = finished(command)
    assert status == (-9 if killed == "launcher" else 75), said
    wait_for_end(processes)
    assert newest(run) < STEPS
    said, status = finished(cold(home, "resume", str(run)))
    assert status == 0, said
    assert_same(run, whole)


def sampling_process(launcher: int) -> int:
    """A process of the engine: a child of the process that forks them, the fork server, which is a program of its own.

    The launcher and its replicas are children of another fork server, that of the tests.
    """
    others = [each for each in family(launcher) if command_line(each) != command_line(launcher)]
    servers = [each for each in others if b"forkserver" in command_line(each)]
    return next(each for each in servers if parent(each) in servers)


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
