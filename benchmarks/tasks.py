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
from outdo.extras.sft.sft_examples import SftTokens, encode_examples, read_examples
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types.rollouts import Request
from outdo.utils.rng import Stream

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Three-digit sums, and a teacher who forgets carries.

    The more carries the teacher forgets, the fewer answers are right at the start.
    """

    name: str
    careless: float  # probability that the teacher forgets a carry
    carries: int = 0  # the least number of carries of a question
    skill: tuple[float, float] = (0.0, 1.0)  # range of the share of held-out questions that the warm model solves


QUICKSTART = Task(name="quickstart", careless=settings.CARELESS)
CAREFUL = Task(name="careful", careless=0.0)  # its model is the teacher of `distillation`
SPARSE = Task(name="sparse", careless=0.8, carries=2)


def carries(problem: Addition) -> int:
    """Count the columns of the sum that carry into the next."""
    return sum((problem.a % 10**n) + (problem.b % 10**n) >= 10**n for n in (1, 2))


SKILL_QUESTIONS, SKILL_ANSWERS = 128, 4
"""Held-out questions, and answers sampled to each, that measure what a warm-started model solves."""

MOST_TOKENS = 36

FURTHER = OptimiserSettings(lr=2e-4)
FURTHER_STEPS, MOST_FURTHER = 20, 20
"""Steps of fine-tuning after which it is measured again, and how often, until it is in the range of `Task.skill`."""


def prepared(task: Task, seed: int, folder: Path) -> dict[str, Path]:
    """Return the files of a task and its warm-started model; make them if they do not exist yet.

    Equal steps of fine-tuning give other models on other processors. So a model that solves fewer questions than the
    task says, or more, is fine-tuned further. Raises `RuntimeError` if it does not get there.
    """
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
        _warm_start(task, folder, files, seed)
    return files | {"model": folder / "warm"}


def _warm_start(task: Task, folder: Path, files: Mapping[str, Path], seed: int) -> None:
    torch.set_num_threads(1)
    policy = Policy.load(build(folder / "new", seed), device="cpu", optimiser=settings.WARM_START)
    examples, _ = read_examples(str(files["demonstrations"]))
    pairs = Prompts(encode_examples(examples, policy.tokenizer), per_step=settings.WARM_START_PAIRS, seed=seed)
    _fine_tune(policy, pairs, settings.WARM_START_STEPS)
    questions = done(files["held_out"])
    shares = [solved(policy, questions)]
    policy.save(folder / "new")
    if not _is_skilled(task, shares[-1]):  # the schedule of its optimiser has ended
        policy = Policy.load(folder / "new", device="cpu", optimiser=FURTHER)
    while not _is_skilled(task, shares[-1]) and len(shares) <= MOST_FURTHER:
        _fine_tune(policy, pairs, FURTHER_STEPS)
        shares.append(solved(policy, questions))
    print(f"{task.name}: the warm-started model solves {', '.join(f'{share:.1%}' for share in shares)}", flush=True)
    if not _is_skilled(task, shares[-1]):
        raise RuntimeError(f"{task.name}: a share between {task.skill[0]:.0%} and {task.skill[1]:.0%} is expected")
    policy.save(folder / "new")
    (folder / "new").rename(folder / "warm")


def _fine_tune(policy: Policy, pairs: Prompts[SftTokens], steps: int) -> None:
    for _ in sft(policy, pairs, steps=steps):
        pass


def _is_skilled(task: Task, share: float) -> bool:
    return task.skill[0] <= share <= task.skill[1]


def solved(policy: Policy, questions: Sequence[Mapping[str, str]]) -> float:
    """Return the share of right answers, sampled at temperature 1, to the first `SKILL_QUESTIONS` questions."""
    asked = [(number, row) for number, row in enumerate(questions[:SKILL_QUESTIONS]) for _ in range(SKILL_ANSWERS)]
    requests = [
        Request(
            token_ids=tuple(policy.tokenizer.encode(row["prompt"], add_special_tokens=False)),
            stream=Stream("skill", 0, str(number), place % SKILL_ANSWERS),
            max_tokens=MOST_TOKENS,
        )
        for place, (number, row) in enumerate(asked)
    ]
    answers = BuiltinEngine(policy).generate(requests, SamplingParams(max_tokens=MOST_TOKENS))
    texts = policy.tokenizer.batch_decode([each.token_ids for each in answers], skip_special_tokens=True)
    pairs = zip(texts, asked, strict=True)
    return sum(text.rpartition("#")[2].strip() == row["answer"] for text, (_, row) in pairs) / len(asked)


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
