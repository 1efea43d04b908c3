"""Equal runs of a real model on a CPU: are their bits equal, with 1, 2 and 4 threads, also if they are killed?

    python benchmarks/bits.py --model FOLDER [--only grpo sft] [--threads 1 2 4]

Each method trains three steps of 2 questions x 4 answers x 16 tokens by the command line: three times without an
interruption, the second time beside a busy process, and once killed by SIGKILL at a random moment after its first
checkpoint, and resumed. Each run is a line of `docs/bits.jsonl`, with the SHA-256 of its weights and of its metrics; a
run that is there is not made again. The table is printed after each run.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import tasks

from outdo.run.checkpoints.checkpoint import weights_hash
from outdo.run.folder.run_folder import read_metrics

RESULTS = tasks.HERE.parent / "docs/bits.jsonl"
THREADS = (1, 2, 4)
RUNS = ("1", "busy", "3", "killed")
STEPS = 3
RECIPE = """
steps = 3
device = "cpu"
rewards = "score.py:score"
data = {path = "train.jsonl"}
sampling = {max_tokens = 16}
optim = {lr = 1e-4}
eval = {every = 0}
train = {prompts = 2, group_size = 4}
"""
SCORE = '''
def score(completion):
    """The share of letters: it tells the answers of any model apart."""
    return sum(each.isalpha() for each in completion) / (1 + len(completion))
'''
TRAIN: Mapping[str, Sequence[str]] = {
    "grpo": ["train.objective={name='grpo', beta=0.0}"],
    "ppo": ["train.objective=ppo", "train.critic={name='model', lr=1e-5}"],
    "gspo": ["train.objective=gspo"],
    "target": ["train.objective=target"],
    "LoRA": ["train.objective={name='grpo', beta=0.0}", "train.adapter=lora"],
    "LoRA on int8": ["train.objective={name='grpo', beta=0.0}", "train.adapter=lora", "weights=int8"],
    "LoRA on nf4": ["train.objective={name='grpo', beta=0.0}", "train.adapter=lora", "weights=nf4"],
    "two replicas": ["train.objective={name='grpo', beta=0.0}", "cluster.replicas=2"],
    "two replicas, divided": ["train.objective={name='grpo', beta=0.0}", "cluster.replicas=2", "cluster.shard=true"],
}
SUPERVISED: Mapping[str, Sequence[str]] = {
    "SFT": ["sft", "MODEL", "--data", "train.jsonl", "--answer", "answer"],
    "reward model": ["reward-model", "MODEL", "--data", "pairs.jsonl", "--holdout", "0"],
}
TIMES = ("seconds", "tokens_per_second", "record/seconds", "time/", "engine/", "replicas/")
"""How the names of metrics begin that depend on the clock."""
PATIENCE = 3600.0


def main() -> None:
    """Make the missing runs; print the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a language model")
    parser.add_argument("--only", nargs="+", default=[*TRAIN, *SUPERVISED])
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    wanted = [
        {"method": method, "threads": threads, "run": run}
        for threads in arguments.threads
        for method in arguments.only
        for run in RUNS
    ]
    arguments.results.touch()
    for each in tasks.missing(arguments.results, wanted):
        tasks.append(arguments.results, {**each, **trained(arguments.model, **each)})
        print(table(tasks.done(arguments.results)), flush=True)


def trained(model: Path, *, method: str, threads: int, run: str) -> dict[str, Any]:
    """Make a run; return the hashes of what it made, the step after which it was killed, and its seconds."""
    with tempfile.TemporaryDirectory() as name, busy_process() if run == "busy" else nullcontext():
        home = Path(name)
        write_home(home, model.resolve())
        out = home / "out"
        # Threads that wait without spinning: more of them than cores would take minutes.
        variables = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        start = time.monotonic()
        killed = None
        if run == "killed":
            arguments = command(method, threads, model.resolve(), save_every=1)
            killed = kill(home, arguments, variables, random.Random(f"{method}{threads}"))
            outdo(home, ["resume", "out"], variables)
        else:
            outdo(home, command(method, threads, model.resolve(), save_every=STEPS), variables)
        seconds = round(time.monotonic() - start, 1)
        newest = out / (f"checkpoints/step_{STEPS:06d}" if method in TRAIN else "")
        metrics = _metrics_hash(out) if method in TRAIN else None
        return {"weights": weights_hash(newest), "metrics": metrics, "killed_after": killed, "seconds": seconds}


def write_home(home: Path, model: Path) -> None:
    """Write what a run needs: a recipe, questions with answers, pairs and a reward."""
    questions = [f"What is {a} plus {a + 3}?" for a in range(8)]
    rows = [{"prompt": question, "answer": str(2 * a + 3)} for a, question in enumerate(questions)]
    pairs = [{"prompt": each["prompt"], "chosen": each["answer"], "rejected": "I do not know."} for each in rows]
    for file, content in {"train.jsonl": rows, "pairs.jsonl": pairs}.items():
        (home / file).write_text("".join(json.dumps(row) + "\n" for row in content))
    (home / "score.py").write_text(SCORE)
    (home / "recipe.toml").write_text(f"model = {json.dumps(str(model))}\n{RECIPE}")


def command(method: str, threads: int, model: Path, *, save_every: int) -> list[str]:
    """Return the arguments of a training."""
    if method in TRAIN:
        own = [f"threads={threads}", f"checkpoint.every={save_every}"]
        return ["train", "recipe.toml", "run=./out", *own, *TRAIN[method]]
    usual = ["--out", "out", "--steps", str(STEPS), "--batch", "8", "--lr", "1e-4", "--device", "cpu"]
    own = [str(model) if each == "MODEL" else each for each in SUPERVISED[method]]
    return [*own, *usual, "--checkpoint-every", str(save_every)]


def outdo(home: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a command to its end."""
    ended = subprocess.run(
        [sys.executable, "-m", "outdo", *arguments],
        cwd=home,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if ended.returncode:
        sys.exit(f"outdo {' '.join(arguments)}: status {ended.returncode}\n{ended.stdout}")


def kill(home: Path, arguments: Sequence[str], variables: Mapping[str, str], moments: random.Random) -> int:
    """Start a command and kill it at a random moment after its first checkpoint; return the last step that is saved."""
    process = subprocess.Popen(
        [sys.executable, "-m", "outdo", *arguments],
        cwd=home,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait(lambda: bool(saved(home)), process)
    moment = time.monotonic() + moments.uniform(0, 6)
    _wait(lambda: time.monotonic() > moment or STEPS in saved(home), process)
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        sys.exit(f"outdo {' '.join(arguments)}: it ended before it was killed")
    return max(saved(home), default=0)


def saved(home: Path) -> list[int]:
    """Return the steps that have a checkpoint."""
    found = [*home.glob("out/checkpoints/step_*"), *home.glob("out.unfinished/checkpoints/step_*")]
    return [int(path.name.removeprefix("step_")) for path in found]


def _wait(happened: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def _metrics_hash(run: Path) -> str:
    lines = [
        {name: value for name, value in line.items() if not name.startswith(TIMES)}
        for line in read_metrics(run / "metrics.jsonl")
    ]
    return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep a core busy meanwhile: which of two threads is first then changes from one time to the next."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a table in Markdown: a method in each row, a number of threads in each column."""
    lines = [f"| method | {' | '.join(f'{each} threads' for each in THREADS)} |", "|---" * (1 + len(THREADS)) + "|"]
    for method in dict.fromkeys(each["method"] for each in results):
        cells = [_cell([each for each in results if (each["method"], each["threads"]) == (method, n)]) for n in THREADS]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines).replace("1 threads", "1 thread")


def _cell(runs: Sequence[Mapping[str, Any]]) -> str:
    different = len({(each["weights"], each["metrics"]) for each in runs})
    missing = f" (of {len(runs)} runs)" if len(runs) < len(RUNS) else ""
    return "" if not runs else ("equal" if different == 1 else f"{different} different") + missing


if __name__ == "__main__":
    main()
