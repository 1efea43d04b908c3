"""A run that is killed at any moment and resumed is the run that was not."""

import signal
import time
from pathlib import Path
from random import Random

import pytest
from run_cases import Command, outdo_, saved, steps_done, timeless, wait_until, weights

PLAIN = ("checkpoint.every=1",)
FULL = (
    "checkpoint.every=2",
    "train.updates=3",
    "train.minibatches=2",
    'train.objective={name = "grpo", beta = 0.1}',
    "reference.every=7",
    "optim.schedule=cosine",
    "optim.warmup=10",
)


def killed_and_resumed(home: Path, run: Path, kills: int, *settings: str) -> list[str]:
    """Train in `run`, killed again and again; the moments, of which some are in the middle of a save."""
    random, moments = Random(run.name), []
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", *settings)
    while len(moments) < kills:
        moment = random.choice(["in a step", "in a step", "while saving", "while starting"])
        wait_for(moment, run, command, random)
        command.process.kill()
        assert command.wait() == -signal.SIGKILL, f"it ended before it was killed {kills} times: {command.said}"
        moments.append(moment)
        started = (run / "recipe.toml").exists()  # killed before that, there is nothing to go on with
        command = Command(home, *(["resume", run.name] if started else command.arguments))
    assert command.wait() == 0, command.said
    return moments


def wait_for(moment: str, run: Path, command: Command, random: Random) -> None:
    mine = str(command.pid)
    wait_until(lambda: mine in text(run / "lock"), command)
    match moment:
        case "while starting":
            time.sleep(random.uniform(0, 0.3))
        case "while saving":
            wait_until(lambda: any((run / "checkpoints").glob(f".tmp-*-{mine}*")), command)
        case _:
            target = max(saved(run), default=0) + random.randint(1, 2)
            wait_until(lambda: steps_done(run) >= target, command)
            time.sleep(random.uniform(0, 0.05))


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def assert_same(run: Path, straight: Path) -> None:
    assert timeless(run) == timeless(straight)
    assert saved(run)[-1] == saved(straight)[-1]
    assert weights(run) == weights(straight)
    assert not list((run / "checkpoints").glob(".tmp-*"))


def test_a_run_that_is_killed_again_and_again_is_the_run_that_was_not(home, straight):
    killed_and_resumed(home, home / "killed", 10, *PLAIN)
    assert_same(home / "killed", straight)


def test_so_is_one_with_a_reference_a_schedule_and_several_updates_per_batch(home):
    outdo_(home, "train", "recipe.toml", "run=./straight-full", *FULL)
    killed_and_resumed(home, home / "killed-full", 10, *FULL)
    assert_same(home / "killed-full", home / "straight-full")
    assert all(line["updates/done"] == 3 for line in timeless(home / "killed-full"))
    assert any(line["kl"] > 0 for line in timeless(home / "killed-full"))


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("settings", [PLAIN, FULL], ids=["plain", "full"])
def test_twenty_five_kills_change_nothing(home, settings, threads):
    """Each is compared with a run of as many threads: one and two give equal weights in runs this small only."""
    name = f"{len(settings)}-{threads}"
    more = (*settings, "steps=120", f"threads={threads}")
    outdo_(home, "train", "recipe.toml", f"run=./long-{name}", *more)
    moments = killed_and_resumed(home, home / f"long-killed-{name}", 25, *more)
    assert set(moments) == {"in a step", "while saving", "while starting"}
    assert_same(home / f"long-killed-{name}", home / f"long-{name}")
