"""Checkpoints that are written while training goes on are those of a run that waits for them."""

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace

import pytest
from kill_cases import assert_same, weights, without_time
from run_cases import PATIENCE, Command, contents, outdo_, saved, steps_done, wait_until

import outdo.run.checkpoints.state as state_module
from outdo.config.file import load
from outdo.extras.replicas.replicas import Replicas
from outdo.rollouts.in_turn import InTurn
from outdo.run.check.preflight import Report
from outdo.run.checkpoints import checkpoint, save_times
from outdo.run.checkpoints.checkpoints import Checkpoints
from outdo.run.display import Display
from outdo.run.training import start
from outdo.utils.errors import CheckpointError, DiskFullError
from outdo.utils.world import ALONE

PLAIN = ("steps=7", "checkpoint.every=3", "checkpoint.keep=9", "eval.every=0", "optim.lr=1e-2")
KINDS = {
    "all": (
        "train.objective=ppo",
        'train.critic={name = "model", lr = 1e-3}',
        'train.kl_in_reward={name = "k1", beta = {start = 0.05, target = 0.01}}',
        "reference.sync.every=2",
    ),
    "adapter": ('train.adapter={name = "lora", rank = 2, alpha = 4}',),
}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let each save in the background begin to write two steps later; return the steps of these saves."""
    found: list[int] = []
    save = checkpoint.save

    def later(folder: Path, step: int, *arguments: object) -> Path:
        if threading.current_thread().name.startswith("checkpoint"):
            found.append(step)
            last = 7
            wait_until(lambda: steps_done(folder.parent) >= min(step + 2, last))
        return save(folder, step, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save", later)
    monkeypatch.setattr(save_times, "CHECKPOINT_SHARE", float("inf"))  # copy every step, however long it takes
    return found


def train(home: Path, name: str, *settings: str) -> Path:
    report = Report(recipe=load("recipe.toml", [f"run=./{name}", *settings]), errors=())
    assert start(report, home / name, Display(live=False)) == 0
    return home / name


@pytest.mark.parametrize("kind", ["all", pytest.param("adapter", marks=pytest.mark.long)])
def test_what_is_written_in_the_background_is_what_a_run_that_waits_writes(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, slow: list[int], kind: str
):
    """Each save begins to write after weights and state have changed twice, and copies of later steps were due."""
    monkeypatch.chdir(own_home)
    run = train(own_home, "background", *PLAIN, *KINDS[kind])
    assert slow == [3, 6]  # the last one is written when the run ends
    monkeypatch.setattr(state_module, "free_memory", lambda device: 0)
    waiting = train(own_home, "waiting", *PLAIN, *KINDS[kind])
    assert slow == [3, 6]  # without memory for a copy the run waits
    assert saved(run) == saved(waiting) == [3, 6, 7]
    for step in (3, 6, 7):
        folders = [each / "checkpoints" / f"step_{step:06d}" for each in (run, waiting)]
        assert checkpoint.verify(folders[0]) == []
        files = [contents(folder) for folder in folders]
        for each in files:
            assert each.pop("state/state.json")
            assert each.pop("manifest.json")
        assert files[0] == files[1]
        assert without_time(folders[0]) == without_time(folders[1])


def test_a_run_that_waits_for_its_checkpoints_has_written_each_before_the_next_step(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, slow: list[int]
):
    monkeypatch.chdir(own_home)
    written = list[tuple[int, int]]()
    publish = checkpoint._publish

    def published(temporary: Path, target: Path) -> None:
        publish(temporary, target)
        written.append((int(target.name.removeprefix("step_")), steps_done(own_home / "waiting")))

    monkeypatch.setattr(checkpoint, "_publish", published)
    waits = "checkpoint.every={steps = 3, wait = true}"
    waiting = train(own_home, "waiting", *PLAIN, waits)
    assert slow == []  # no save began in the background
    assert written == [(3, 3), (6, 6), (7, 7)]
    assert "every = {steps = 3, wait = true}" in (waiting / "recipe.toml").read_text()
    plain = train(own_home, "plain", *PLAIN)
    assert "every = 3\n" in (plain / "recipe.toml").read_text()
    assert weights(plain) == weights(waiting)


def test_the_summary_names_a_best_checkpoint_when_it_is_published_and_the_one_before_stays_until_then(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(own_home)
    run, publish, seen = own_home / "run", checkpoint._publish, list[tuple[int, int, list[int]]]()

    def later(temporary: Path, target: Path) -> None:
        step = int(target.name.removeprefix("step_"))
        wait_until(lambda: steps_done(run) >= min(step + 1, 4))
        best = json.loads((run / "summary.json").read_text())["best"].get("step", 0)
        seen.append((step, best, saved(run)))
        publish(temporary, target)

    monkeypatch.setattr(checkpoint, "_publish", later)
    (own_home / "score.py").write_text(
        "from pathlib import Path\n"
        "def score(completion):\n"  # higher after each step
        "    return len(Path('run/metrics.jsonl').read_bytes().splitlines()) + len(completion) / 100\n"
    )
    (own_home / "run").mkdir()
    (own_home / "run/metrics.jsonl").touch()
    train(own_home, "run", "steps=4", "checkpoint.keep=1", "eval.every=1", "eval.samples=0", "eval.greedy=true")
    assert [step for step, *_ in seen] == [1, 2, 3, 4]
    assert [best for _, best, _ in seen] == [0, 1, 2, 3]
    assert [before for *_, before in seen] == [[], [1], [2], [3]]
    assert saved(run) == [4]
    assert json.loads((run / "summary.json").read_text())["best"]["step"] == 4


@pytest.mark.parametrize("known", [pytest.param("soon", marks=pytest.mark.release), "at the end"])
def test_a_full_disk_in_the_background_ends_the_run_with_the_earlier_checkpoints(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, known: str
):
    monkeypatch.chdir(own_home)
    save_file, overdue = checkpoint.save_file, Checkpoints.are_overdue

    def full(*arguments: object) -> None:
        if "step_000004" in str(arguments[1]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(*arguments)  # type: ignore[arg-type]

    def settled(checkpoints: Checkpoints) -> bool:
        wait([checkpoints._pending] if checkpoints._pending else [], PATIENCE)
        return known == "soon" and overdue(checkpoints)

    settings = ("steps=9", "checkpoint.every=2", "checkpoint.keep=9", "eval.every=0")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        patch.setattr(Checkpoints, "are_overdue", settled)
        with pytest.raises(DiskFullError, match=r"step_000004: no space left .* Earlier checkpoints are unchanged"):
            train(own_home, "run", *settings)
    run = own_home / "run"
    assert saved(run) == [2]
    assert steps_done(run) == (5 if known == "soon" else 6)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_000002"]
    outdo_(own_home, "resume", "run")
    assert_same(run, train(own_home, "straight", *settings))


HOLDS = """
import time
from pathlib import Path
from types import SimpleNamespace
from outdo.algorithms.objectives.presets import grpo
from outdo.run.checkpoints import checkpoint

publish = checkpoint._publish

def held(temporary, target):
    if target.name == "step_000004":
        Path("saving").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    publish(temporary, target)

checkpoint._publish = held

def objective():
    return grpo(beta=0.0)
"""
HELD = ("steps=8", "checkpoint.every=2", "checkpoint.keep=9", "eval.every=0", "train.objective=held.py:objective")


@pytest.mark.release
def test_a_signal_waits_for_the_checkpoint_in_the_background_and_saves_the_last_finished_step(own_home: Path):
    """The run has computed step 5 while step 4 is being saved."""
    (own_home / "held.py").write_text(HOLDS)
    held = Command(own_home, "train", "recipe.toml", "run=./run", *HELD)
    wait_until(lambda: (own_home / "saving").exists() and steps_done(own_home / "run") >= 5, held)
    os.kill(held.pid, signal.SIGTERM)
    wait_until(lambda: "saving" in held.said or "saved" in held.said, held)
    assert saved(own_home / "run") == [2]
    (own_home / "go").touch()
    assert held.wait() == 143, held.said
    last = steps_done(own_home / "run")
    assert saved(own_home / "run") == [2, 4, last]
    outdo_(own_home, "resume", "run")
    outdo_(own_home, "train", "recipe.toml", "run=./straight", *HELD)
    assert_same(own_home / "run", own_home / "straight")


def test_an_error_waits_for_the_checkpoint_in_the_background(own_home: Path, monkeypatch: pytest.MonkeyPatch):
    """Step 3 fails while step 2 is being written, which is told to be saved when it is."""
    monkeypatch.chdir(own_home)
    (own_home / "score.py").write_text(
        "from pathlib import Path\n"
        "def score(completion):\n"
        "    if Path('run/metrics.jsonl').exists() and Path('run/metrics.jsonl').read_bytes().count(b'\\n') == 2:\n"
        "        raise KeyError('lost')\n"
        "    return len(completion) % 3\n"
    )
    publish = checkpoint._publish

    def later(temporary: Path, target: Path) -> None:
        ending.wait()
        time.sleep(1)  # a run that does not wait has told by then that the step is saved
        publish(temporary, target)

    stop, ending = InTurn.stop, threading.Event()
    monkeypatch.setattr(InTurn, "stop", lambda ahead: (stop(ahead), ending.set()))
    monkeypatch.setattr(checkpoint, "_publish", later)
    said: list[tuple[str, list[int]]] = []
    display = Display(live=False)
    monkeypatch.setattr(display, "say", lambda line: said.append((line, saved(own_home / "run"))))
    recipe = load("recipe.toml", ["run=./run", "steps=4", "checkpoint.every=2", "eval.every=0", "data.eval_path="])
    with pytest.raises(Exception, match="lost"):
        start(Report(recipe=recipe, errors=()), own_home / "run", display)
    assert saved(own_home / "run") == [2]
    assert [steps for line, steps in said if "saved after step 2; continue with" in line] == [[2]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


class FirstOfTwo:
    """The first of two replicas with whole models; what it tells the other one."""

    first, rank = True, 0

    def __init__(self) -> None:
        self.told: list[str] = []

    def __len__(self) -> int:
        return 2

    def from_first(self, compute: Callable[[], object]) -> object:
        return Replicas.from_first(self, compute)  # type: ignore[arg-type, type-var]

    def _broadcast(self, values: list[object]) -> None:
        self.told.append(str(values[0]))


def test_an_error_in_the_background_of_the_first_replica_is_one_of_all():
    replicas = FirstOfTwo()
    run = SimpleNamespace(is_divided=False, world=replicas, writers=ALONE)
    checkpoints = Checkpoints(None, run, saved=0)  # type: ignore[arg-type]

    def fail() -> None:
        raise CheckpointError("not saved")

    checkpoints._pending = checkpoints._thread.submit(fail)
    with pytest.raises(CheckpointError, match="not saved"):
        checkpoints.wait()
    assert replicas.told == ["(None, 'CheckpointError: not saved')"]
    checkpoints.wait()  # the error is raised once
    assert checkpoints.close() == ""
