"""Compare the ways in which one machine's cores share a step: threads, and replicas.

    python benchmarks/cores.py [--rounds 3] [--steps 8]

Threads are those of one process. Replicas (`cluster.replicas = 2`) are processes that have all weights, gradients and
optimiser states each. Every run trains the same untrained model on the same questions by GRPO; the runs take turns.
Printed are the seconds of a step, from the fastest step of each run as other programs may slow the others down, the
seconds from the command to the first step, and the memory of all processes together (proportional set size, so that
what they share counts once).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from outdo.testing import tiny_model

RECIPE = """
model = "model"
device = "cpu"
rewards = "score.py:score"
data = {path = "questions.jsonl"}
sampling = {max_tokens = 48}
train = {prompts = 8, group_size = 8, objective = {name = "grpo", beta = 0.0}}
record = {every = 0}
eval = {rows = 1, samples = 0}
checkpoint = {every = 1000}
"""
SCORE = "def score(completion, answer):\n    return sum(each.isalnum() for each in completion) / 48\n"
MODELS = {"0.8 M weights": (128, 4), "14 M weights": (384, 8)}
CASES = (("0.8 M weights", 8), ("0.8 M weights", 32), ("14 M weights", 8))
"""Models, and how many questions a step has, with 8 answers each."""
WAYS = {
    "one thread": ("threads=1",),
    "two threads": ("threads=2",),
    "two replicas": ("threads=1", "cluster.replicas=2"),
}
WARM_UP = 2
LOOK = 2.0  # seconds between two looks at the memory, which stop the process for a moment


def main() -> None:
    """Let the ways take turns, and print a table for each model and batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        homes = {model: Path(folder) / str(number) for number, model in enumerate(MODELS)}
        for model, (hidden, layers) in MODELS.items():
            prepare(homes[model], hidden, layers)
        for model, prompts in CASES:
            found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
            for _ in range(arguments.rounds):
                for way, settings in WAYS.items():
                    found[way].append(measure(homes[model], arguments.steps, f"train.prompts={prompts}", *settings))
            print_table(f"{model}, {prompts} x 8 answers", found)


def prepare(home: Path, hidden: int, layers: int) -> None:
    """Write a model, questions, a reward and a recipe."""
    home.mkdir()
    tiny_model(home / "model", hidden=hidden, layers=layers)
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 40) for b in range(10, 40)]
    (home / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (home / "score.py").write_text(SCORE, encoding="utf-8")
    (home / "recipe.toml").write_text(RECIPE, encoding="utf-8")


def measure(home: Path, steps: int, *settings: str) -> tuple[float, float, float]:
    """Return the least seconds of a step, the seconds before the first one, and the largest memory in bytes."""
    run = home / f"run-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "outdo", "train", "recipe.toml", f"steps={steps + WARM_UP}", f"run=./{run.name}"]
    start = time.monotonic()
    process = subprocess.Popen([*command, *settings], cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seen: dict[str, float] = {"memory": 0.0}
    watch = threading.Thread(target=watch_process, args=(process, run / "metrics.jsonl", seen))
    watch.start()
    _, error = process.communicate()
    watch.join()
    if process.returncode:
        raise SystemExit(error.decode())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return min(row["seconds"] for row in rows[WARM_UP:]), seen["first"] - start - rows[0]["seconds"], seen["memory"]


def watch_process(process: "subprocess.Popen[bytes]", metrics: Path, seen: dict[str, float]) -> None:
    """Note the largest memory, and when the first step ended, until the process has ended."""
    looked = time.monotonic()
    while process.poll() is None:
        if "first" not in seen and metrics.exists() and metrics.stat().st_size:
            seen["first"] = time.monotonic()
        if time.monotonic() - looked > LOOK:
            seen["memory"] = max(seen["memory"], sum(map(proportional, family(process.pid))))
            looked = time.monotonic()
        time.sleep(0.05)


def family(process: int) -> list[int]:
    """Return a process and all that it has started."""
    parents: dict[int, list[int]] = defaultdict(list)
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parents[int((each / "stat").read_text().rpartition(")")[2].split()[1])].append(int(each.name))
        except OSError:  # it has ended
            continue
    found = [process]
    for each in found:
        found += parents[each]
    return found


def proportional(process: int) -> int:
    """Return the bytes of a process; what n processes share counts as an nth."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def print_table(title: str, found: dict[str, list[tuple[float, float, float]]]) -> None:
    """Print medians of the rounds, relative to one thread."""
    print(f"\n{title} (load {os.getloadavg()[0]:.1f})")
    print(f"{'':14} {'step':>8} {'speed':>18} {'start':>8} {'memory':>9}")
    first = found["one thread"]
    for way, rounds in found.items():
        ratios = [one[0] / each[0] for one, each in zip(first, rounds, strict=True)]
        step, start, memory = (statistics.median(column) for column in zip(*rounds, strict=True))
        speed = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{way:14} {step:7.3f}s {speed:>18} {start:7.1f}s {memory / 2**20:6.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
