"""Runs that are killed and resumed, and how they are compared with those that were not."""

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from run_cases import Command, saved, steps_done, timeless, wait_until, weights

from outdo.extras.record.parquet import read, recorded_steps
from outdo.run.checkpoints.checkpoint import STATE


@dataclass(frozen=True)
class Kill:
    """What a kill found on the disk."""

    saved: int  # the step of the newest checkpoint; 0: there was none
    steps: int  # finished steps, by their lines of metrics
    saving: bool  # a checkpoint was being written

    @property
    def fell(self) -> str:
        """Where it fell."""
        if self.saving:
            return "while saving"
        return "after a checkpoint" if self.saved else "before the first checkpoint"


MOMENTS = ("in a step", "in a step", "while saving", "while starting")
"""Where a process is killed: these moments in turn, in random order."""


def killed_and_resumed(home: Path, run: Path, kills: int, *settings: str, apart: int = 2) -> list[Kill]:
    """Train in `run`, killed again and again, at most `apart` steps after the newest checkpoint if in a step.

    The first kill is before the first checkpoint. All others, but those while a process starts, come after a new one,
    so that the next process continues from another step than the one before.
    """
    random, found, moments = Random(run.name), list[Kill](), ["in the first step"]
    command = Command(home, "train", "recipe.toml", f"run=./{run.name}", *settings)
    while len(found) < kills:
        moments = moments or random.sample(MOMENTS, len(MOMENTS))
        wait_for(moments.pop(), run, command, random, apart)
        command.process.kill()
        assert command.wait() == -signal.SIGKILL, f"it ended before it was killed {kills} times: {command.said}"
        saving = any((run / "checkpoints").glob(f".tmp-*-{command.pid}*"))
        found.append(Kill(newest(run), steps_done(run), saving))
        started = (run / "recipe.toml").exists()  # killed before that, there is nothing to go on with
        command = Command(home, *(["resume", run.name] if started else command.arguments))
    assert command.wait() == 0, command.said
    return found


def assert_resumed_after(kills: Sequence[Kill], step: int) -> None:
    """The run was resumed from several checkpoints of `step` or later ones.

    A run that is killed before its first checkpoint starts again, and shows nothing about what a checkpoint holds.
    """
    assert len({kill.saved for kill in kills if kill.saved >= step}) > 1, kills


def assert_fell_everywhere(kills: Sequence[str]) -> None:
    """Most kills fell when there was a checkpoint to resume from, and some before that and while one was written."""
    fell = Counter(kills)
    print(dict(fell))
    assert set(fell) == {"before the first checkpoint", "while saving", "after a checkpoint"}, fell
    assert fell["after a checkpoint"] + fell["while saving"] > len(kills) / 2, fell


def wait_for(moment: str, run: Path, command: Command, random: Random, apart: int) -> None:
    mine, before = str(command.pid), newest(run)
    wait_until(lambda: mine in text(run / "lock"), command)
    match moment:
        case "in the first step":
            wait_until((run / "history.jsonl").exists, command)  # written when all is loaded
        case "while starting":
            time.sleep(random.uniform(0, 0.3))
        case "while saving":
            wait_until(lambda: newest(run) > before, command)
            wait_until(lambda: any((run / "checkpoints").glob(f".tmp-*-{mine}*")), command)
        case _:
            wait_until(lambda: newest(run) > before, command)
            target = newest(run) + random.randint(1, apart)
            wait_until(lambda: steps_done(run) >= target, command)
            time.sleep(random.uniform(0, 0.05))


def newest(run: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max(saved(run), default=0)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def assert_same(run: Path, straight: Path) -> None:
    """Equal metrics and records, and newest checkpoints equal bit for bit in all but the time that the run took."""
    assert timeless(run) == timeless(straight)
    assert recorded_steps(run) == recorded_steps(straight) == [line["step"] for line in timeless(run)]
    assert all(read(run, step).equals(read(straight, step)) for step in recorded_steps(run))
    assert not list((run / "tokens").glob(".*"))
    assert saved(run)[-1] == saved(straight)[-1]
    assert weights(run) == weights(straight)
    folders = [each / "checkpoints" / f"step_{saved(each)[-1]:06d}" for each in (run, straight)]
    tensors, others = zip(*map(without_time, folders), strict=True)
    assert tensors[0] == tensors[1]
    assert others[0] == others[1]
    assert not list((run / "checkpoints").glob(".tmp-*"))


def without_time(checkpoint: Path) -> tuple[bytes, dict[str, Any]]:
    """The training state's tensors (optimisers, reference, critic, reward models), and the rest.

    The rest is without what may differ between equal runs: time, folder, and where the engine runs.
    """
    state = json.loads((checkpoint / STATE).read_text())
    del state["progress"]["seconds"]
    state["identity"]["recipe"] = re.sub(r"(?m)^(run|engine) = .*$", "", state["identity"]["recipe"])
    return b"".join(path.read_bytes() for path in sorted((checkpoint / "state").glob("tensors*.safetensors"))), state
