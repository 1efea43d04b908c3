"""Measure the ways to use the cores of a machine, side by side: workers, replicas, and engines of their own.

    python benchmarks/processes.py [--rounds 3] [--steps 8] [--hidden 128]

All runs train the same untrained model on the same questions by GRPO, with the numbers of the quickstart, and sample
the same tokens. They take turns, and of each way the fastest step counts, after the first two, as other processes may
slow the others down. The memory is that of all processes of a run together (Pss, which counts shared memory once), at
its largest. Engines of their own also print what a delivery of the weights takes.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from outdo.testing import tiny_model

RECIPE = """
model = "model"
device = "cpu"
threads = 2
rewards = "score.py:score"
data = {path = "questions.jsonl"}
sampling = {max_tokens = 48}
train = {prompts = 32, group_size = 8, objective = {name = "grpo", beta = 0.0}}
record = {every = 0}
eval = {rows = 1, samples = 0}
checkpoint = {every = 1000}
"""
SCORE = "def score(completion, answer):\n    return sum(each.isalnum() for each in completion) / 48\n"
ENGINE = 'engine={{name = "builtin", processes = {}}}'
WAYS = {
    "two workers": ("workers=2",),
    "two replicas": ("cluster.replicas=2", "threads=1", "workers=1"),
    "two workers, engine of 1 process": ("workers=2", ENGINE.format(1)),
    "two workers, engine of 2 processes": ("workers=2", ENGINE.format(2)),
}
WARM_UP = 2


class Measured(NamedTuple):
    """What a run takes at least: seconds of a step, of its sampling, of a delivery and its proof; and its memory."""

    step: float
    sampling: float
    memory: int  # bytes, at its largest
    delivery: float
    proof: float
    delivered: float  # bytes


def main() -> None:
    """Measure all ways in turns; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        home = Path(folder)
        model, _ = tiny_model(home / "model", hidden=arguments.hidden, layers=4)
        rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 40) for b in range(10, 40)]
        (home / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (home / "score.py").write_text(SCORE, encoding="utf-8")
        (home / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        found: dict[str, list[Measured]] = {way: [] for way in WAYS}
        for turn in range(arguments.rounds):
            for number, (way, settings) in enumerate(WAYS.items()):
                found[way].append(measure(home, f"{number}-{turn}", arguments.steps, settings))
    best = {way: min(runs, key=lambda run: run.step) for way, runs in found.items()}
    unit = best["two workers"]
    print(f"{model.num_parameters():,} weights; seconds of a step and of its sampling, as multiples of two workers'")
    print(f"{'':36}{'step':>6}{'sampling':>10}{'memory':>10}{'delivery':>12}{'bytes':>12}{'proof':>10}")
    for way, run in best.items():
        memory = min(each.memory for each in found[way]) / 2**20
        line = f"{way:36}{run.step / unit.step:6.2f}{run.sampling / unit.sampling:10.2f}{memory:6.0f} MiB"
        if run.delivered:
            line += f"{1000 * run.delivery:9.1f} ms{run.delivered:12,.0f}{1000 * run.proof:7.0f} ms"
        print(line)


def measure(home: Path, name: str, steps: int, settings: tuple[str, ...]) -> Measured:
    """Run `outdo train` with these settings; return what its fastest step took."""
    command = [sys.executable, "-m", "outdo", "train", "recipe.toml", f"steps={steps + WARM_UP}", f"run=./{name}"]
    memory = 0
    with (home / "log").open("w") as log:
        run = subprocess.Popen([*command, *settings], cwd=home, stdout=log, stderr=log)
        while run.poll() is None:
            memory = max(memory, sum(map(shared_out, family(run.pid))))
            time.sleep(0.5)
    if run.returncode:
        raise SystemExit((home / "log").read_text(encoding="utf-8"))
    lines = (home / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][WARM_UP:]
    least = {key: min(row.get(key, 0.0) for row in rows) for key in rows[0]}
    return Measured(
        step=least["seconds"],
        sampling=least["time/sample"],
        memory=memory,
        delivery=least.get("engine/delivery_seconds", 0.0),
        proof=least.get("engine/proof_seconds", 0.0),
        delivered=least.get("engine/delivery_bytes", 0.0),
    )


def family(process: int) -> list[int]:
    """Return a process and all that it has started."""
    children = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children += [int(child) for child in path.read_text().split()]
        except OSError:  # it has ended
            continue
    return [process, *(each for child in children for each in family(child))]


def shared_out(process: int) -> int:
    """Return the bytes of a process, shared ones divided by the number of processes that share them."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
