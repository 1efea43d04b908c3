"""Runs of several replicas: the same tokens as one process, and they end, and resume, together."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from forked_replicas import main, replicas_of
from kill_cases import assert_same
from run_cases import (
    Command,
    Replicas,
    cold,
    ended,
    family,
    of_process,
    outdo_,
    saved,
    state,
    steps_done,
    timeless,
    together,
    wait_for_end,
    wait_until,
)
from safetensors.torch import load_file

from outdo.extras.record.parquet import read, recorded_steps
from outdo.run.checkpoints.checkpoint import weights_hash

STEPS = 12
SETTINGS = (f"steps={STEPS}", "eval.every=6", "checkpoint.every=2", "optim.lr=1e-4")

DIVIDED, SEQUENCES = "cluster.shard=true", 'attention={name = "ulysses"}'

METHODS = {
    "critic": ("train.objective=ppo", "train.advantage=gae", "steps=6", "eval.every=3"),
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


MARKS = {"critic": (), "divided": pytest.mark.release, "sequences": pytest.mark.release}


@pytest.mark.parametrize("method", [pytest.param(name, marks=MARKS.get(name, pytest.mark.long)) for name in METHODS])
def test_two_replicas_sample_the_same_tokens_and_learn_the_same_weights(home: Path, method: str):
    name = method.replace(" ", "-")
    settings = (*SETTINGS, *METHODS[method])
    of_one = [each for each in settings if each != SEQUENCES]
    outdo_(home, "train", "recipe.toml", f"run=./alone-{name}", *of_one)
    said = together(home, "train", "recipe.toml", f"run=./both-{name}", "cluster.replicas=2", *settings)
    alone, both = home / f"alone-{name}", home / f"both-{name}"
    assert recorded_steps(alone) == recorded_steps(both)
    for step in recorded_steps(alone):
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


@pytest.mark.release
def test_replicas_end_with_a_launcher_that_is_killed_and_resume_exactly(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A replica that a signal has stopped ends with its launcher, too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run = home / "launcher-killed"
    command = cold(home, "train", "recipe.toml", f"run=./{run.name}", "cluster.replicas=2", *SETTINGS)
    wait_until(lambda: steps_done(run) >= 3, command)
    replicas = family(command.pid)
    assert len(replicas) >= 2
    os.kill(second_of(replicas), signal.SIGSTOP)
    command.kill()
    said, status = finished(command)
    assert status == -9, said
    wait_for_end(replicas)
    assert not list(tmp_path.iterdir())
    assert 3 <= steps_done(run) < STEPS
    together(home, "resume", run)
    assert_same(run, undisturbed(home, "both-grpo", (*SETTINGS, "cluster.replicas=2")))


@pytest.mark.release
def test_replicas_with_parts_of_the_models_resume_exactly(home: Path):
    settings = (*SETTINGS, "cluster.replicas=2", *METHODS["divided"])
    whole = undisturbed(home, "both-divided", settings)
    command = Command(home, "train", "recipe.toml", "run=./divided-killed", *settings, main=main)
    run = home / "divided-killed"
    second_killed_after_an_unsaved_step(run, command)
    assert command.wait() == 75, command.said
    assert "replica 1 of 2 was ended by SIGKILL" in command.said
    assert "each replica holds a part of the weights" in command.said
    replicas = Replicas(home, "resume", run)
    wait_until(lambda: steps_done(run) >= 8, replicas)
    replicas.kill(0, signal.SIGTERM)
    assert replicas.wait()[0] == 143, replicas.said
    assert saved(run)[-1] == steps_done(run) < STEPS  # all of them finish the step, and save it together
    together(home, "resume", run)
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


def second_killed_after_an_unsaved_step(run: Path, command: Command) -> None:
    """Kill the second replica when the last finished step, the fifth or a later one, is odd: it gets no checkpoint.

    The first one is stopped meanwhile, so that it does not finish another step before the kill.
    """
    wait_until(lambda: len(replicas_of(command.pid)) == 2 and steps_done(run) >= 5, command)
    first, second = replicas_of(command.pid)
    while True:
        wait_until(lambda: steps_done(run) % 2 == 1, command)
        assert command.running, command.said
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: state(first) == "T", command)
        if steps_done(run) % 2 == 1:
            break
        os.kill(first, signal.SIGCONT)
    os.kill(second, signal.SIGKILL)
    os.kill(first, signal.SIGCONT)


def undisturbed(home: Path, name: str, settings: tuple[str, ...]) -> Path:
    """Return a run that another test has made, unless this one runs alone."""
    if not (home / name).exists():
        together(home, "train", "recipe.toml", f"run=./{name}", *settings)
    return home / name


@pytest.mark.long
def test_replicas_with_parts_of_a_base_save_after_an_error_and_resume_exactly(home: Path):
    base, settings = weights_hash(home / "model"), (*SETTINGS, "cluster.replicas=2", *METHODS["divided adapter"])
    whole, run = undisturbed(home, "both-divided-adapter", settings), home / "divided-adapter-killed"
    said = second_killed(home, run, settings)
    assert "saved after step" in said  # the adapter is whole on each replica
    together(home, "resume", run)
    assert_same(run, whole)
    outdo_(home, "export", run, home / "exported-divided-adapter")
    exported = load_file(home / "exported-divided-adapter" / "adapter_model.safetensors")
    assert all(exported[name].equal(weight) for name, weight in weights(run).items())
    outdo_(home, "resume", run, f"steps={STEPS + 1}", "cluster.replicas=1", "cluster.shard=false")
    assert saved(run)[-1] == STEPS + 1
    assert weights_hash(home / "model") == base


def second_killed(home: Path, run: Path, settings: tuple[str, ...]) -> str:
    """Train, and kill the second replica after a step; what the first one said."""
    replicas = Replicas(home, "train", "recipe.toml", f"run=./{run.name}", "--verbose", *settings)
    wait_until(lambda: steps_done(run) >= 5, replicas)
    replicas.kill(1)
    assert replicas.wait() == [75, -9], replicas.said
    return replicas.said


@pytest.mark.long
def test_replicas_that_share_sequences_resume_exactly(home: Path):
    settings = (*SETTINGS, "cluster.replicas=2", *METHODS["sequences"])
    whole, run = undisturbed(home, "both-sequences", settings), home / "sequences-killed"
    said = second_killed(home, run, settings)
    assert "attention: shared, each sequence by 2 replicas" in said
    assert "saved after step" in said  # all weights are whole on each replica
    together(home, "resume", run)
    assert_same(run, whole)


def second_of(processes: list[int]) -> int:
    """Return the replica whose rank is 1."""
    return next(each for each in processes if b"\0RANK=1\0" in of_process(each, "environ"))


def test_more_processes_than_the_recipe_names_are_refused(home: Path):
    arguments = ("train", "recipe.toml", "run=./other-number", "cluster.replicas=3")
    command = Command(home, *arguments, variables={"RANK": "0", "WORLD_SIZE": "2"})
    assert command.wait() == 2
    assert "cluster.replicas = 3, but 2 processes were started" in command.said


@pytest.mark.release
def test_a_mistake_in_the_recipe_is_printed_once(home: Path):
    said, status = finished(cold(home, "train", "recipe.toml", "run=./no", "cluster.replicas=2", "data.path=no.jsonl"))
    assert status == 2
    assert said.count("no.jsonl") == 1


SLOW = '''
import os
import time
from pathlib import Path

from outdo.algorithms.objectives.presets import grpo


class Slow:
    """GRPO. While there is a file `slow`, a step of the second replica takes ten times as long, on any machine."""

    def __init__(self):
        self.formula, self.since = grpo(beta=0.0), None
        self.requires = self.formula.requires

    def prepare(self, batch):
        return self.formula.prepare(batch)

    def __call__(self, scores, batch):
        if self.since and os.environ["RANK"] == "1" and Path("slow").exists():
            time.sleep(9 * (time.monotonic() - self.since))
        terms = self.formula(scores, batch)
        self.since = time.monotonic()
        return terms
'''


@pytest.mark.release
def test_a_replica_that_is_ten_times_slower_delays_the_run_changes_nothing_and_is_named(home: Path):
    (home / "slow.py").write_text(SLOW)
    settings = (*SETTINGS, "steps=8", "eval.every=0", "cluster.replicas=2", "train.objective=slow.py:Slow")
    usual, run = undisturbed(home, "usual-replica", settings), home / "slow-replica"
    (home / "slow").touch()
    together(home, "train", "recipe.toml", f"run=./{run.name}", *settings)
    assert_same(run, usual)
    assert "replica 1 takes" in outdo_(home, "doctor", run)
    assert "replica 1 takes" not in outdo_(home, "doctor", usual)
