"""The quickstart's task with `train.max_staleness` 0, 1, 2 and 4: what older answers cost, and what waiting is saved.

    python benchmarks/staleness.py [--staleness 0 1 2 4] [--seeds 0 1 2] [--steps 20] [--across] [--results FILE]

Each run samples by the built-in engine in one process, beside a trainer with one thread, so that it needs two cores.
With `--across` the runs with 2 or more are made once more with `partial_rollouts = true`. Results are appended to a
file of JSON lines, and a run that is in it is not made again; the table of all of them is printed at the end.

The last columns are the share of a step in which the trainer waits for answers, as measured and as the simulation of
`outdo plan` predicts it from the seconds of sampling and of training of the same run. Both are means over the steps
after the first five.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tasks

from outdo.extras.plan.simulation import Loop, simulate

PROMPTS, GROUP = 16, 8
SETTINGS = [
    "sampling.max_tokens=48",
    f"train.prompts={PROMPTS}",
    f"train.group_size={GROUP}",
    "train.minibatches=4",
    "train.objective={name='grpo', beta=0.0}",
    "optim.lr=1e-4",
    "optim.schedule.warmup=4",
    "eval.rows=256",
    "eval.samples=0",
    "record.every=0",
]
FIRST = 5  # steps that are not counted
COLUMNS = ("`max_staleness`", "right before, by seed", "right after", "effective sample size", "seconds a step")
COLUMNS += ("of sampling", "of training", "the trainer waits", "predicted")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> None:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--across", action="store_true", help="also with partial rollouts")
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    parser.add_argument("--results", type=Path, default=Path("runs/benchmarks/staleness.jsonl"))
    arguments = parser.parse_args()
    ways = [(n, across) for n in arguments.staleness for across in ([False, True] if arguments.across else [False])]
    wanted = [
        {"staleness": n, "across": across, "seed": seed, "steps": arguments.steps}
        for seed in arguments.seeds
        for n, across in ways
        if n > 1 or not across
    ]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for each in tasks.missing(arguments.results, wanted):
        found = {**each, **run(each, arguments.models)}
        tasks.append(arguments.results, found)
        print(f"{each}: {found['accuracy_after']:.1%} right, {found['seconds']:.2f} s a step", flush=True)
    print("\n".join([HEAD, *rows(tasks.done(arguments.results), arguments.steps)]))


def run(wanted: Mapping[str, Any], models: Path) -> dict[str, Any]:
    """Train; return the numbers that the results file keeps. Those of time are means over the steps."""
    files = tasks.prepared(tasks.QUICKSTART, wanted["seed"], models)
    across = ", partial_rollouts = true" if wanted["across"] else ""
    result = tasks.train(
        files,
        [
            f"engine={{name = 'builtin', processes = 1{across}}}",
            f"train.max_staleness={wanted['staleness']}",
            f"seed={wanted['seed']}",
            f"steps={wanted['steps']}",
            *SETTINGS,
        ],
    )
    summary, steps = result["summary"], result["steps"][FIRST:]

    def mean(value: Callable[[Mapping[str, float]], float]) -> float:
        return fmean(value(step) for step in steps)

    def sampling(step: Mapping[str, float]) -> float:
        return step["time/ahead"] if wanted["staleness"] else step["time/sample"] + step["time/reward"]

    def waiting(step: Mapping[str, float]) -> float:
        return step["time/wait"] if wanted["staleness"] else sampling(step)

    return {
        "accuracy_before": summary["accuracy_before"],
        "accuracy_after": summary["accuracy_after"],
        "reward": [round(step["reward"], 4) for step in result["steps"]],
        "effective": mean(lambda step: step["sampling/effective_sample_size"]),
        "seconds": mean(lambda step: step["seconds"]),
        "sampling": mean(sampling),
        "waiting": mean(waiting),
        "restarts": result["steps"][-1]["engine/restarts"],
    }


def predicted(staleness: int, sampling: float, training: float) -> float:
    """Return the share of a step in which the trainer waits, by the simulation of `outdo plan`.

    All answers have the same length, since the run gives the seconds of a batch and not of single tokens.
    """
    answers, tokens = PROMPTS * GROUP, 16
    loop = Loop(
        lengths=np.full(answers, float(tokens)),
        batch=answers,
        prompt=0.0,
        slots=answers,
        engines=1.0,
        step=lambda running, cached: sampling / tokens,
        training=training,
        update=0.0,
        staleness=float(staleness),
    )
    steady = simulate(loop, steps=20, warm_up=10)
    return steady.trainer_idle / steady.seconds


def rows(runs: Sequence[Mapping[str, Any]], steps: int) -> list[str]:
    """Return the rows of the table: one for each staleness, with and without answers across updates."""
    runs = [each for each in runs if each["steps"] == steps]
    ways = sorted({(each["staleness"], each["across"]) for each in runs})
    return [row(f"{n}{', across updates' if across else ''}", select(runs, n, across=across)) for n, across in ways]


def select(runs: Sequence[Mapping[str, Any]], staleness: int, *, across: bool) -> list[Mapping[str, Any]]:
    """Return the runs of a row, in the order of their seeds."""
    chosen = [each for each in runs if (each["staleness"], each["across"]) == (staleness, across)]
    return sorted(chosen, key=lambda each: each["seed"])


def row(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a row of the table."""
    mean = {key: fmean(each[key] for each in runs) for key in ("effective", "seconds", "sampling", "waiting")}
    training = mean["seconds"] - mean["waiting"]
    shares = [each["waiting"] / each["seconds"] for each in runs]
    by_plan = [predicted(each["staleness"], each["sampling"], each["seconds"] - each["waiting"]) for each in runs]
    cells = [
        name,
        ", ".join(f"{each['accuracy_before']:.1%}" for each in runs),
        ", ".join(f"{each['accuracy_after']:.1%}" for each in runs),
        f"{mean['effective']:.3f}",
        f"{mean['seconds']:.2f}",
        f"{mean['sampling']:.2f}",
        f"{training:.2f}",
        f"{fmean(shares):.0%}",
        f"{fmean(by_plan):.0%}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
