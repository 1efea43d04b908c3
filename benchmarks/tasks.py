"""The tasks that methods are compared on, and one run on one of them: `outdo train`, as a user would type it.

Results are appended to a file of JSON lines, one per run, and a run that stands there is not made again: a comparison
that was stopped goes on where it was.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from outdo.cli.quickstart import settings
from outdo.cli.quickstart.model import build
from outdo.cli.quickstart.task import Problem, demonstrations, held_out, problems, rows
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import questions_from
from outdo.models.policy import Policy
from outdo.trainer.sft import sft

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Three-digit sums, and a teacher who forgets carries: the more, the rarer is a right answer at the start."""

    name: str
    careless: float  # chance that the teacher forgets a carry
    carries: int = 0  # only problems with at least so many carries


QUICKSTART = Task(name="quickstart", careless=settings.CARELESS)
CAREFUL = Task(name="careful", careless=0.0)  # the teacher to learn from by distillation
SPARSE = Task(name="sparse", careless=0.8, carries=2)


def carries(problem: Problem) -> int:
    """How many columns of the sum carry into the next."""
    return sum((problem.a % 10**n) + (problem.b % 10**n) >= 10**n for n in (1, 2))


def prepared(task: Task, seed: int, folder: Path) -> dict[str, Path]:
    """The task's files and its warm-started model; made if they are not there yet."""
    folder = folder / f"{task.name}-{seed}"
    files = {name: folder / f"{name}.jsonl" for name in ("demonstrations", "questions", "held_out")}
    if not (folder / "warm").exists():
        folder.mkdir(parents=True, exist_ok=True)
        judged = held_out()
        learnt = problems(settings.QUESTIONS, seed, exclude=judged)
        content = {
            "demonstrations": demonstrations(learnt, seed, careless=task.careless),
            "questions": rows([each for each in learnt if carries(each) >= task.carries]),
            "held_out": rows([each for each in judged if carries(each) >= task.carries]),
        }
        for name, path in files.items():
            path.write_text("".join(json.dumps(row) + "\n" for row in content[name]))
        _warm_start(folder, files["demonstrations"], seed)
    return files | {"model": folder / "warm"}


def _warm_start(folder: Path, data: Path, seed: int) -> None:
    torch.set_num_threads(1)
    policy = Policy.load(build(folder / "new", seed), device="cpu", optimiser=settings.WARM_START)
    pairs = tokenise(questions_from(str(data), answer="completion"), policy.tokenizer)
    steps = settings.WARM_START_STEPS
    for _ in sft(policy, Prompts(pairs, per_step=settings.WARM_START_PAIRS, seed=seed), steps=steps):
        pass
    policy.save(folder / "new")
    (folder / "new").rename(folder / "warm")


def train(files: Mapping[str, Path], overrides: Sequence[str]) -> dict[str, Any]:
    """One run: its summary, and the metrics of every step."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        arguments = [
            f"model={files['model']}",
            f"data.path={files['questions']}",
            f"data.eval_path={files['held_out']}",
            f"run={run}",
            "rewards=exact",
            "threads=1",
            "checkpoint.every=100000",
            *overrides,
        ]
        command = [sys.executable, "-m", "outdo.cli.main", "train", *arguments]
        made = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if made.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{made.stdout[-2000:]}\n{made.stderr[-2000:]}")
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {"summary": json.loads((run / "summary.json").read_text()), "steps": steps}


def done(path: Path) -> list[dict[str, Any]]:
    """The runs whose results stand in the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(path: Path, wanted: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Those of `wanted` (each a name, a task and a seed) that the file lacks, looked up when their turn comes."""
    for each in wanted:
        if not any(all(run.get(key) == value for key, value in each.items()) for run in done(path)):
            yield each


def append(path: Path, result: Mapping[str, Any]) -> None:
    """Add one run's result; whole lines, so that two processes may share the file."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
