"""Target probabilities against GRPO, GRPO with sign advantages, and DAPO: two tasks, five seeds, equal samples.

    python benchmarks/target.py [--seeds 0 1 2 3 4] [--tasks quickstart sparse]

8 questions with 8 answers each per step, at most 8 passes over a batch. Results go to `docs/methods/target.jsonl`;
`--show` prints the tables of `docs/methods/target.md`.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tasks

RESULTS = tasks.HERE.parent / "docs/methods/target.jsonl"
TASKS = {task.name: task for task in (tasks.QUICKSTART, tasks.SPARSE)}
SETTINGS = [
    "steps=24",
    "sampling.max_tokens=48",
    "train.prompts=8",
    "train.group_size=8",
    "train.passes=8",
    "optim.lr=1e-4",
    "optim.schedule.warmup=8",
    "eval.rows=256",
    "eval.samples=4",
]
STOP = "train.stop={name='first_of', attained=0.9, plateau=0.001, kl=0.1}"
METHODS = {
    "grpo": ["train.objective=grpo", "train.objective.beta=0"],
    "grpo + sign": ["train.objective=grpo", "train.objective.beta=0", "train.advantage=sign"],
    "dapo": ["train.objective=dapo"],
    "target": ["train.objective=target", STOP],
    "target, band 0.3": ["train.objective=target", STOP, "train.advantage.band=0.3"],
}
HEAD = "| method | sampled before | sampled after | greedy after | passes | tokens |\n|---|---|---|---|---|---|"
KEPT = ("accuracy_before", "accuracy_after", "sampled_before", "sampled_after", "seconds")


def main() -> None:
    """Make the missing runs, and print the tables of all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tasks", nargs="+", default=[*TASKS])
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    parser.add_argument("--show", action="store_true", help="only print the tables")
    arguments = parser.parse_args()
    wanted = [
        {"task": t, "method": m, "seed": seed} for seed in arguments.seeds for t in arguments.tasks for m in METHODS
    ]
    for each in [] if arguments.show else tasks.missing(RESULTS, wanted):
        tasks.append(RESULTS, {**each, **run(each["task"], each["method"], each["seed"], arguments.models)})
    show(tasks.done(RESULTS))


def run(task: str, method: str, seed: int, models: Path) -> dict[str, Any]:
    """Train by one method on one task; return the numbers that the results file keeps."""
    files = tasks.prepared(TASKS[task], seed, models)
    result = tasks.train(files, [f"seed={seed}", *SETTINGS, *METHODS[method]])
    steps = result["steps"]
    return {
        **{name: result["summary"][name] for name in KEPT},
        "sampled_tokens": sum(step["num_tokens"] for step in steps),
        "updates": fmean(step["passes/done"] for step in steps),
        "attained": _mean([step["target/attained"] for step in steps if "target/attained" in step]),
        "entropy": steps[-1]["entropy"],
        "stopped": Counter(name.rpartition("/")[2] for step in steps for name in step if "/stopped/" in name),
        "reward": [round(step["reward"], 4) for step in steps],
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def show(runs: Sequence[dict[str, Any]]) -> None:
    """Print a table for each task."""
    for task in TASKS:
        print(f"\n### {task}\n\n{HEAD}")
        for method in METHODS:
            of_method = [each for each in runs if each["task"] == task and each["method"] == method]
            if of_method:
                print(f"| {method} | {' | '.join(columns(of_method))} |")


def columns(of_method: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns of the table for the runs of one method."""
    shares = [
        _spread([100 * each[name] for each in of_method])
        for name in ("sampled_before", "sampled_after", "accuracy_after")
    ]
    tokens = fmean(each["sampled_tokens"] for each in of_method)
    return [*shares, f"{fmean(each['updates'] for each in of_method):.1f}", f"{tokens:,.0f}"]


def _spread(values: Sequence[float]) -> str:
    """Return mean ± standard error."""
    return f"{fmean(values):.1f} ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else f"{values[0]:.1f}"


if __name__ == "__main__":
    main()
