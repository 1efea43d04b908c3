"""Tasks to compare methods on, and a function that runs `outdo train` on one of them.

Results are appended to a file of JSON lines, one for each run. A run that is in the file is not made again, so a
comparison that was stopped continues.
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

from outdo.data.prompts import Prompts
from outdo.extras.quickstart import settings
from outdo.extras.quickstart.model import build
from outdo.extras.quickstart.sums import Addition, demonstrations, held_out, problems, rows
from outdo.extras.sft.sft import sft
from outdo.extras.sft.sft_examples import encode_examples, read_examples
from outdo.models.policy import Policy

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Three-digit sums, and a teacher who forgets carries.

    The more carries the teacher forgets, the fewer answers are right at the start.
    """

    name: str
    careless: float  # probability that the teacher forgets a carry
    carries: int = 0  # the least number of carries of a question


QUICKSTART = Task(name="quickstart", careless=settings.CARELESS)
CAREFUL = Task(name="careful", careless=0.0)  # its model is the teacher of `distillation`
SPARSE = Task(name="sparse", careless=0.8, carries=2)


def carries(problem: Addition) -> int:
    """Count the columns of the sum that carry into the next."""
    return sum((problem.a % 10**n) + (problem.b % 10**n) >= 10**n for n in (1, 2))


def prepared(task: Task, seed: int, folder: Path) -> dict[str, Path]:
    """Return the files of a task and its warm-started model; make them if they do not exist yet."""
    folder = folder / f"{task.name}-{seed}"
    files = {name: folder / f"{name}.jsonl" for name in ("demonstrations", "questions", "held_out")}
    if not (folder / "warm").exists():
        folder.mkdir(parents=True, exist_ok=True)
        test = held_out()
        training = problems(settings.QUESTIONS, seed, exclude=test)
        content = {
            "demonstrations": demonstrations(training, seed, careless=task.careless),
            "questions": rows([each for each in training if carries(each) >= task.carries]),
            "held_out": rows([each for each in test if carries(each) >= task.carries]),
        }
        for name, path in files.items():
            path.write_text("".join(json.dumps(row) + "\n" for row in content[name]))
        _warm_start(folder, files["demonstrations"], seed)
    return files | {"model": folder / "warm"}


def _warm_start(folder: Path, data: Path, seed: int) -> None:
    torch.set_num_threads(1)
    policy = Policy.load(build(folder / "new", seed), device="cpu", optimiser=settings.WARM_START)
    examples, _ = read_examples(str(data))
    pairs = encode_examples(examples, policy.tokenizer)
    steps = settings.WARM_START_STEPS
    for _ in sft(policy, Prompts(pairs, per_step=settings.WARM_START_PAIRS, seed=seed), steps=steps):
        pass
    policy.save(folder / "new")
    (folder / "new").rename(folder / "warm")


def train(files: Mapping[str, Path], overrides: Sequence[str]) -> dict[str, Any]:
    """Run `outdo train`; return the summary, and the metrics of every step."""
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
        finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if finished.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}")
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {"summary": json.loads((run / "summary.json").read_text()), "steps": steps}


def done(path: Path) -> list[dict[str, Any]]:
    """Return the results in the file, one for each run."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(path: Path, wanted: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the runs of `wanted` that the file lacks; it is read before each, since another process may write to it.

    A run is in the file if a result has all its keys with the same values.
    """
    for each in wanted:
        if not any(all(run.get(key) == value for key, value in each.items()) for run in done(path)):
            yield each


def append(path: Path, result: Mapping[str, Any]) -> None:
    """Append the result of a run as one whole line, so that two processes can share the file."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
