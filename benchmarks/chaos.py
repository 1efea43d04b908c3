"""Kill or freeze a random process of a run again and again, and compare its end with the run that nothing happened to.

    python benchmarks/chaos.py [--case replicas engine] [--seconds 300] [--every 20] [--seed 25]

A run is started with `--restarts`. Every so many seconds a random role gets SIGKILL or SIGSTOP: a replica or trainer, a
process of the engine, or the command itself. What nobody can notice is left out: a frozen command, as nobody waits for
it, and a frozen trainer without replicas. A command that has ended by a fault is repeated with `outdo resume`, as a
scheduler does. After the given time the run is left alone until it ends. It has to have the weights of the undisturbed
run, and every question has to be trained once in each pass over the data, or listed as dropped. Nothing may be left: no
process and no temporary folder.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outdo.extras.record.parquet import read
from outdo.run.checkpoints.checkpoint import weights_hash
from outdo.testing import tiny_model

QUESTIONS, PROMPTS = 12, 2
RECIPE = f"""
model = "model"
device = "cpu"
threads = 1
rewards = "score.py:score"
reward_limits = {{environment = ["CHAOS_PAUSE"]}}
data = {{path = "questions.jsonl", eval_path = "held_out.jsonl"}}
sampling = {{max_tokens = 8}}
train = {{prompts = {PROMPTS}, group_size = 4, objective = {{name = "grpo", beta = 0.0}}}}
optim = {{lr = 1e-4}}
eval = {{every = 50, rows = 2, samples = 1}}
checkpoint = {{every = 5}}
"""
SCORE = """
import os, time

def score(completion, answer):
    time.sleep(float(os.environ.get("CHAOS_PAUSE", 0)))
    return sum(each.isalnum() for each in completion) / 8
"""
ANSWERS = 4 * PROMPTS

TIMEOUT = 30
"""Seconds without progress after which a replica, or a process of the engine, is given up."""

CASES = {
    "replicas": ("cluster.replicas=2", f"cluster.timeout={TIMEOUT}"),
    "engine": (f'engine={{name = "builtin", processes = 2, timeout = {TIMEOUT}}}',),
}
KILL, FREEZE = signal.SIGKILL, signal.SIGSTOP
FREEZES = {
    "replicas": (("trainer", KILL), ("trainer", FREEZE)),
    "engine": (("engine", KILL), ("engine", FREEZE)),
}
RESTARTS = 3
PATIENCE = 600.0
"""Seconds that a fault waits at most for the process that it needs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One process that was killed or frozen."""

    seconds: float  # since the start
    role: str
    signal: str
    step: int  # steps that were finished by then


def main() -> int:
    """Run the cases, and print what happened; return 1 if a run is not the undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as name:
        for case in arguments.case:
            home = write_home(Path(name) / case)
            whole, plan = undisturbed(home, case, arguments.steps), (arguments.seconds, arguments.every, arguments.seed)
            run, faults, left = disturbed(home, case, arguments.steps, *plan)
            wrong += [f"{case}: {each}" for each in [*differences(run, whole, arguments.steps), *left]]
            print(f"{case}: {len(faults)} faults, {dict(Counter(f'{each.role} {each.signal}' for each in faults))}")
    for each in wrong:
        print(f"wrong: {each}")
    return 1 if wrong else 0


def write_home(folder: Path) -> Path:
    """Write what a run needs: an untrained model, questions, a reward and a recipe."""
    tiny_model(folder / "model")
    rows = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(QUESTIONS + 2)]
    for file, part in {"questions": rows[:QUESTIONS], "held_out": rows[QUESTIONS:]}.items():
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "score.py").write_text(SCORE)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def undisturbed(home: Path, case: str, steps: int) -> Path:
    """Train without a fault; return the run."""
    run = home / "whole"
    command = _outdo(home, home, ["train", "recipe.toml", f"run=./{run.name}", f"steps={steps}", *CASES[case]], pause=0)
    assert command.wait() == 0, (home / "log").read_text()
    return run


def disturbed(
    home: Path, case: str, steps: int, seconds: float, every: float, seed: int
) -> tuple[Path, list[Fault], list[str]]:
    """Train with a fault every so many seconds; return the run, the faults, and what is left when it has ended."""
    print(f"{case}: a fault every {every:g} s for {seconds:g} s, by random numbers of the seed {seed}", flush=True)
    chance, run, faults = random.Random(seed), home / "chaos", list[Fault]()
    pause = seconds / 2 / steps / ANSWERS  # so that the run takes half of the time without a fault
    (temporary := home / "t").mkdir()
    start = ["train", "recipe.toml", f"run=./{run.name}", f"steps={steps}", *CASES[case]]
    began = time.monotonic()

    def begin() -> "subprocess.Popen[bytes]":
        again = ["resume", f"./{run.name}"] if (run / "recipe.toml").exists() else start
        return _outdo(home, temporary, [*again, "--restarts", str(RESTARTS)], pause=pause)

    command = begin()
    while (now := time.monotonic() - began) < seconds:
        status = _wait(command, min(every, seconds - now))
        if status == 0:
            break
        if status is not None:
            command = begin()
        elif time.monotonic() - began < seconds and (what := _fault(command, case, temporary, run, chance)):
            faults.append(Fault(round(time.monotonic() - began, 1), *what, _steps_done(run)))
            print(f"  {faults[-1]}", flush=True)
    for _ in range(RESTARTS):
        if command.wait() == 0:
            break
        command = begin()
    assert command.wait() == 0, (home / "log").read_text()
    return run, faults, _left(temporary)


def differences(run: Path, whole: Path, steps: int) -> list[str]:
    """Return in what a run differs from the undisturbed one, and which questions are not accounted for."""
    found = []
    last = Path("checkpoints") / f"step_{steps:06d}"
    if weights_hash(run / last) != weights_hash(whole / last):
        found.append("other weights")
    questions = json.loads((run / "summary.json").read_text())["questions"]
    if questions != json.loads((whole / "summary.json").read_text())["questions"]:
        found.append(f"other counts of questions: {questions}")
    if not questions["asked"] == questions["answered"] == questions["trained"] + questions["dropped"]:
        found.append(f"questions are missing in the counts: {questions}")
    trained = [_questions_of(run, step) for step in range(1, steps + 1)]
    if sum(map(len, trained)) != questions["trained"]:
        found.append(f"{sum(map(len, trained))} questions are recorded as trained; the counts: {questions}")
    an_epoch = QUESTIONS // PROMPTS
    for first in range(0, steps - an_epoch + 1, an_epoch):
        counts = Counter(each for step in trained[first : first + an_epoch] for each in step)
        if not questions["dropped"] and (len(counts) != QUESTIONS or set(counts.values()) != {1}):
            found.append(f"steps {first + 1} to {first + an_epoch} do not train each question once: {dict(counts)}")
    return found


def _questions_of(run: Path, step: int) -> set[str]:
    """Return the questions that a step has trained on, by the record of its answers."""
    return set(map(str, read(run, step).column("prompt_id").to_pylist()))


def _outdo(home: Path, temporary: Path, arguments: Sequence[str], *, pause: float) -> "subprocess.Popen[bytes]":
    """Start the command; its processes are known by their folder for temporary files."""
    with (home / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "outdo", *arguments],
            cwd=home,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary), "CHAOS_PAUSE": str(pause)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _wait(command: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return command.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None


def _fault(
    command: "subprocess.Popen[bytes]", case: str, temporary: Path, run: Path, chance: random.Random
) -> tuple[str, str] | None:
    """Choose a role and a signal, wait for a process of this role, and send it the signal; return both.

    Two of three faults also wait until the run has finished a step since now. Returns None if the run ends before.
    """
    choices = (("command", KILL), ("trainer", KILL), *FREEZES[case])
    (role, number), place, before = chance.choice(choices), chance.random(), _steps_done(run)
    after_a_step, deadline = chance.random() < 2 / 3, time.monotonic() + PATIENCE
    while command.poll() is None:
        assert time.monotonic() < deadline, f"no process of the role {role} makes a step within {PATIENCE:g} s"
        found = [command.pid] if role == "command" else _processes(temporary, role)
        if found and (not after_a_step or _steps_done(run) > before):
            with contextlib.suppress(ProcessLookupError):  # it may just have ended by itself
                os.kill(found[int(place * len(found))], number)
                return role, number.name
        before = min(before, _steps_done(run))  # a resumed run goes back to its checkpoint
        time.sleep(0.05)
    return None


def _steps_done(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


ROLES: Mapping[str, Callable[[bytes], bool]] = {
    "trainer": lambda command: b"-m\0outdo\0" in command,
    "engine": lambda command: b"multiprocessing.forkserver" in command,
}


def _processes(temporary: Path, role: str) -> list[int]:
    """Return the processes of a role, which are children of other processes of the run."""
    family = _family(temporary)
    members = [each for each, parent in family.items() if parent in family and ROLES[role](_read(each, "cmdline"))]
    if role == "engine":  # the server that forks them is one of their kind
        members = [each for each in members if family[each] in members]
    return sorted(members)


def _family(temporary: Path) -> dict[int, int]:
    """Return the living processes of the run, each with its parent."""
    mark = f"\0TMPDIR={temporary}\0".encode()
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and mark in b"\0" + _read(int(path.name), "environ"):
            state, parent, *_ = _read(int(path.name), "stat").rpartition(b")")[2].split() or (b"Z", b"0")
            if state != b"Z":
                found[int(path.name)] = int(parent)
    return found


def _read(process: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:  # it has ended
        return b""


def _left(temporary: Path) -> list[str]:
    """Return what is left one minute after the end: processes, and files in the folder for temporary ones."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (_family(temporary) or any(temporary.iterdir())):
        time.sleep(0.2)
    processes = [f"process {each} is left: {_read(each, 'cmdline')!r}" for each in _family(temporary)]
    return processes + [f"{path} is left" for path in temporary.iterdir()]


if __name__ == "__main__":
    sys.exit(main())
