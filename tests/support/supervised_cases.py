"""`outdo sft` and `outdo reward-model`, killed and resumed, and how they are compared with undisturbed ones."""

import re
import signal
import threading
import time
from pathlib import Path
from random import Random

from run_cases import Command, contents, wait_until, write_rows

import outdo.cli.main
from outdo.run.checkpoints import checkpoint

STEPS = 80
USUAL = ("--steps", STEPS, "--batch", 4, "--lr", 1e-3, "--device", "cpu", "--checkpoint-every", 4)


def arguments(home: Path, command: str, out: str, *more: object) -> list[str]:
    """The arguments of a training of `command` on data that are written into `home`."""
    if not (home / "pairs.jsonl").exists():
        write_rows(home / "pairs.jsonl", [{"prompt": f"{n}?", "chosen": "12", "rejected": "13"} for n in range(50)])
    data = {"sft": ["train.jsonl", "--answer", "answer"], "reward-model": ["pairs.jsonl"]}[command]
    return [str(each) for each in (command, "model", "--data", *data, "--out", out, *USUAL, *more)]


def saved_steps(out: Path) -> list[int]:
    """The steps that an unfinished training has saved."""
    return sorted(int(path.name.removeprefix("step_")) for path in _checkpoints(out).glob("step_*"))


def steps_said(command: Command) -> int:
    """The last step that it has printed."""
    found = re.findall(r"^step (\d+)/", command.said, re.MULTILINE)
    return int(found[-1]) if found else 0


def killed_and_continued(home: Path, command: str, out: str, kills: int, *more: object) -> list[str]:
    """Train, killed again and again at random moments; return for each kill what it left on the disk."""
    random, moments = Random(f"{command} {out}"), list[str]()
    running = Command(home, *arguments(home, command, out, *more), main=main_that_does_not_save)
    while len(moments) < kills:
        saved = max(saved_steps(home / out), default=0)
        moment = random.choice(["in a step", "while saving"]) if moments else "before the first checkpoint"
        _wait_for(moment, home / out, running, random, saved)
        running.process.kill()
        assert running.wait() == -signal.SIGKILL, f"it ended before it was killed {kills} times: {running.said}"
        moments.append(_left(home / out))
        running = Command(home, "resume", out)
    assert running.wait() == 0, running.said
    return moments


def main_that_does_not_save() -> None:
    """`outdo`, which waits for ever at its first checkpoint: a kill before it cannot come too late."""
    checkpoint.save = lambda *_: threading.Event().wait()  # type: ignore[assignment, return-value]
    outdo.cli.main.main()


def _wait_for(moment: str, out: Path, running: Command, random: Random, saved: int) -> None:
    """Wait for a moment: before the first checkpoint, or, after `saved`, in a later step or while one is saved."""
    match moment:
        case "before the first checkpoint":
            wait_until(lambda: "the first " in running.said, running)  # printed before the first step
        case "while saving":
            wait_until(lambda: any(_checkpoints(out).glob(f".tmp-*-{running.pid}*")), running)
        case _:
            wait_until(lambda: max(saved_steps(out), default=0) > saved, running)
            target = max(saved_steps(out), default=0) + random.randint(1, 6)
            wait_until(lambda: steps_said(running) >= target, running)
            time.sleep(random.uniform(0, 0.01))


def _left(out: Path) -> str:
    if any(_checkpoints(out).glob(".tmp-*")):
        return "while saving"
    return "after a checkpoint" if saved_steps(out) else "before the first checkpoint"


def _checkpoints(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished") / "checkpoints"


def assert_same_model(home: Path, out: str, straight: str) -> None:
    """Two model folders have the same files, bit for bit, and nothing is left beside them."""
    assert contents(home / out) == contents(home / straight)
    assert not (home / f"{out}.unfinished").exists()
