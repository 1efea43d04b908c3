"""Measure runs of 1, 2 and 4 replicas on this machine beside what a plan predicts from the run of one process.

    python benchmarks/replicas.py [--replicas 1 2 4] [--steps 10] [--weak]

With `--weak` each replica has 8 questions a step (weak scaling); without it all of them together have 8.

Each run trains the same untrained model (5 million weights) on the same questions by GRPO, with one thread for each
process. The fastest step counts, after the first two, as other processes may slow the others down. From the run of one
process come the shares of the roofline in sampling and in training, and the seconds that are neither; the roofline is
that of one core, whose products of matrices and copies of memory are timed first. The plan then predicts the other
runs, on as many cores as there are.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from outdo.config.file import load
from outdo.extras.plan.hardware import Card, Cluster
from outdo.extras.plan.layout import ParallelLayout, StepTime, predict
from outdo.extras.plan.lengths import Lengths
from outdo.extras.plan.shapes import Shape, shape_of
from outdo.extras.plan.timing import Fractions
from outdo.extras.plan.workload import Workload, workload_of
from outdo.testing import tiny_model

RECIPE = """
model = "model"
device = "cpu"
threads = 1
rewards = "score.py:score"
data = {path = "questions.jsonl"}
sampling = {max_tokens = 64}
train = {group_size = 8, objective = {name = "grpo", beta = 0.0}}
record = {every = 0}
eval = {rows = 1, samples = 0}
checkpoint = {every = 1000}
"""
SCORE = "def score(completion, answer):\n    return sum(each.isalnum() for each in completion) / 64\n"
TRAINING = ("time/forward", "time/backward", "time/optimiser")
WARM_UP = 2
PROMPTS = 8


def main() -> None:
    """Measure, fit and predict; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--weak", action="store_true", help="give each replica as many questions as one process has")
    arguments = parser.parse_args()
    core = timed_core()
    print(f"{os.cpu_count()} cores: {core.peak / 1e9:.0f} GFLOP/s and {core.bandwidth / 1e9:.1f} GB/s each")
    with TemporaryDirectory() as folder:
        home = Path(folder)
        prepare(home)
        shape, work = problem(home)
        prompts = {n: PROMPTS * (n if arguments.weak else 1) for n in sorted({1, *arguments.replicas})}
        measured = {n: measure(home, n, prompts[n], arguments.steps) for n in prompts}
    lengths = measured[1]["length"]
    work = Workload(prompts=PROMPTS, group=8, prompt_tokens=6, lengths=Lengths(lengths, 64, 0.3), precise=True)
    fractions, host = fitted(shape, core, work, measured[1])
    print(f"fitted on one process: {fractions.decode:.0%} in sampling, {fractions.training:.0%} in training")
    print(f"{'replicas':>8}  {'seconds of':10}  {'measured':>8}  {'predicted':>9}  {'error':>6}")
    for n, run in measured.items():
        found = predicted(shape, core, replace(work, prompts=prompts[n]), n, fractions, host)
        for name, value in (("sampling", found.sampling), ("training", found.training), ("step", found.step)):
            error = value / run[name] - 1
            print(f"{n:8}  {name:10}  {run[name]:8.3f}  {value:9.3f}  {error:+6.0%}{'  fitted' if n == 1 else ''}")


def timed_core() -> Card:
    """Return one core of this machine as a card: its float32 products, and its memory."""
    left = np.ones((1024, 1024), dtype=np.float32)
    block = np.ones(2**25, dtype=np.float32)
    product = best_of(lambda: left @ left)
    copy = best_of(lambda: block.copy())
    return Card(
        name="core",
        peak=2 * 1024**3 / product,
        memory=2**33,
        bandwidth=2 * block.nbytes / copy,
        link=block.nbytes / copy,
        network=1e9,
        machine=os.cpu_count() or 1,
        price=0.0,
    )


def best_of(call: Callable[[], object], rounds: int = 9) -> float:
    """Return the seconds of the fastest of some calls."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def prepare(home: Path) -> None:
    """Write a model, questions, a reward and a recipe."""
    tiny_model(home / "model", hidden=256, layers=8)
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 40) for b in range(10, 40)]
    (home / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (home / "score.py").write_text(SCORE, encoding="utf-8")
    (home / "recipe.toml").write_text(RECIPE, encoding="utf-8")


def problem(home: Path) -> tuple[Shape, Workload]:
    """Return the model and the step as a plan sees them."""
    here = Path.cwd()
    os.chdir(home)
    try:
        shape, _ = shape_of("model")
        return shape, workload_of(load("recipe.toml"), shape.facts)[0]
    finally:
        os.chdir(here)


def measure(home: Path, replicas: int, prompts: int, steps: int) -> dict[str, float]:
    """Return the least seconds of a step of a run, and the mean length of its answers."""
    command = [sys.executable, "-m", "outdo", "train", "recipe.toml", f"steps={steps + WARM_UP}"]
    command += [f"run=./run-{replicas}", f"cluster.replicas={replicas}", f"train.prompts={prompts}"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = (home / f"run-{replicas}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][WARM_UP:]
    return {
        "sampling": min(row["time/sample"] for row in rows),
        "training": min(sum(row[key] for key in TRAINING) for row in rows),
        "step": min(row["seconds"] for row in rows),
        "length": statistics.fmean(row["completions/mean_length"] for row in rows),
    }


def fitted(shape: Shape, core: Card, work: Workload, run: dict[str, float]) -> tuple[Fractions, float]:
    """Return the shares that a run of one process reaches, and its seconds that are neither sampling nor training."""
    whole = predicted(shape, core, work, 1, Fractions(training=1.0, decode=1.0, update=1.0), 0.0)
    training = whole.training / run["training"]
    host = max(0.0, run["step"] - run["sampling"] - run["training"])
    sampling = predicted(shape, core, work, 1, Fractions(training=training, decode=1.0, update=1.0), 0.0).sampling
    decode = sampling / run["sampling"]
    for _ in range(20):  # reading the prompts is part of sampling, and has the share of training
        found = predicted(shape, core, work, 1, Fractions(training=training, decode=decode, update=1.0), 0.0)
        decode *= found.sampling / run["sampling"]
    return Fractions(training=training, decode=decode, update=1.0), host


def predicted(shape: Shape, core: Card, work: Workload, replicas: int, fractions: Fractions, host: float) -> StepTime:
    """Return the step of so many replicas; more of them than cores are not faster."""
    devices = min(replicas, os.cpu_count() or 1)
    layout = ParallelLayout(kind="replicas", trainers=devices, samplers=devices, weight_bytes=4, most_running=256)
    return predict(shape, Cluster(devices, core), work, layout, fractions, host=host)


if __name__ == "__main__":
    main()
