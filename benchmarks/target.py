"""Target probabilities against GRPO, GRPO with sign advantages, and DAPO: two tasks, five seeds, equal samples.

    python benchmarks/target.py [--seeds 0 1 2 3 4] [--tasks quickstart sparse]

8 questions with 8 answers each per step, at most 8 updates per batch. Results go to `docs/methods/target.jsonl`; the
tables in `docs/methods/target.md` are printed by `--show`.
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
    """Make the runs that are missing, and show what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tasks", nargs="+", default=[*TASKS])
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="where warm-started models go")
    parser.add_argument("--show", action="store_true", help="only print the tables")
    asked = parser.parse_args()
    wanted = [{"task": t, "method": m, "seed": seed} for seed in asked.seeds for t in asked.tasks for m in METHODS]
    for each in [] if asked.show else tasks.missing(RESULTS, wanted):
        tasks.append(RESULTS, {**each, **run(each["task"], each["method"], each["seed"], asked.models)})
    show(tasks.done(RESULTS))


def run(task: str, method: str, seed: int, models: Path) -> dict[str, Any]:
    """Train by one method on one task."""
    files = tasks.prepared(TASKS[task], seed, models)
    made = tasks.train(files, [f"seed={seed}", *SETTINGS, *METHODS[method]])
    steps = made["steps"]
    return {
        **{name: made["summary"][name] for name in KEPT},
        "sampled_tokens": sum(step["num_tokens"] for step in steps),
        "updates": fmean(step["updates/done"] for step in steps),
        "attained": _mean([step["target/attained"] for step in steps if "target/attained" in step]),
        "entropy": steps[-1]["entropy"],
        "stopped": Counter(name.rpartition("/")[2] for step in steps for name in step if "/stopped/" in name),
        "reward": [round(step["reward"], 4) for step in steps],
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def show(runs: Sequence[dict[str, Any]]) -> None:
    """One table per task."""
    for task in TASKS:
        print(f"\n### {task}\n\n{HEAD}")
        for method in METHODS:
            mine = [each for each in runs if each["task"] == task and each["method"] == method]
            if mine:
                print(f"| {method} | {' | '.join(figures(mine))} |")


def figures(mine: Sequence[dict[str, Any]]) -> list[str]:
    """What the table says of one method's runs."""
    shares = [
        _spread([100 * each[name] for each in mine]) for name in ("sampled_before", "sampled_after", "accuracy_after")
    ]
    tokens = fmean(each["sampled_tokens"] for each in mine)
    return [*shares, f"{fmean(each['updates'] for each in mine):.1f}", f"{tokens:,.0f}"]


def _spread(values: Sequence[float]) -> str:
    """Mean ± standard error."""
    return f"{fmean(values):.1f} ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else f"{values[0]:.1f}"


if __name__ == "__main__":
    main()
