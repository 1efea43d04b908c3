"""Ablations of target probabilities against GRPO: one factor at a time, equal samples.

    python benchmarks/target.py [--seeds 0 1 2 3 4] [--only speed|ablation]

`ablation` varies one factor at a time over 24 steps, with seed 0. `speed` follows the accuracy over 8 steps, with five
seeds. 8 questions with 8 answers each per step. The runs of `small.py` go to `docs/methods/target_ablation.jsonl`, one
line each with all its settings. A run in the file is not made again, and several processes can share the work.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import small
import tasks

RESULTS = tasks.HERE.parent / "docs/methods/target_ablation.jsonl"
TASKS = {
    "quickstart": (tasks.QUICKSTART, small.exact),
    "sparse": (tasks.SPARSE, small.exact),
    "dense": (tasks.SPARSE, small.digits),
}
MODELS = 2
"""Warm-started models of a task: a run with an odd seed uses the second one."""

Run = dict[str, Any]
STANDARD, SIGN, TREE = {"name": "group_standardised"}, {"name": "sign"}, {"name": "tree", "scale": True}
ADAMW = {"algorithm": {"name": "adamw"}, "warmup": 8, "clip_norm": 1.0}
SGD = {"algorithm": {"name": "sgd"}, "warmup": 0, "clip_norm": 1e9}
POLYAK = {"algorithm": {"name": "polyak"}, "warmup": 0, "clip_norm": 1e9, "lr": 10.0}
GRPO = {"objective": {"name": "grpo"}, "advantage": STANDARD}


def target(**options: Any) -> Run:
    """Return the settings of a run with target probabilities."""
    return {"objective": {"name": "target", **options}, "advantage": STANDARD}


ESSAY: Sequence[Run] = [
    {"objective": {"name": "target_essay"}},
    target(rule="power", unsampled="absorb", limit=1.0, reduction="sum", count="visits"),  # differs in `count` alone
]
LONG: Sequence[Run] = [
    # the optimiser, and the number of passes
    *({**GRPO, **ADAMW, "lr": lr, "passes": n} for n, lr in ((2, 1e-4), (4, 1e-4), (2, 2e-4))),
    *({**GRPO, **SGD, "lr": lr, "passes": n} for n, lr in ((4, 0.03), (8, 0.03), (4, 0.1), (2, 0.3))),
    *({**target(), **SGD, "lr": lr, "passes": 4} for lr in (0.03, 0.1)),
    {**target(), **POLYAK, "passes": 2},
    {**target(eta=0.25), **POLYAK, "passes": 2},
    # credit from the tree
    *(
        {**GRPO, "advantage": TREE, **ADAMW, "lr": lr, "passes": n}
        for n, lr in ((2, 1e-4), (4, 1e-4), (2, 2e-4), (8, 3e-5))
    ),
    {**GRPO, "advantage": TREE, **SGD, "lr": 0.03, "passes": 4},
    {**target(), "advantage": TREE, **SGD, "lr": 0.03, "passes": 4},
    # the clip of the gradient norm, with a sum
    *({**target(reduction="sum"), **ADAMW, "clip_norm": norm, "lr": 1e-4, "passes": 2} for norm in (1.0, 1e9)),
    # where the probability comes from, the loss, and what holds other contexts
    {**target(unsampled="fixed"), **SGD, "lr": 0.03, "passes": 4},
    {**target(eta=1.0), **SGD, "lr": 0.03, "passes": 4},
    *(
        {**target(reduction="sum", **options), **ADAMW, "clip_norm": 1e9, "lr": 1e-4, "passes": 4}
        for options in ({}, {"hold": True})
    ),
]
SPEED: Sequence[Run] = [
    {**target(), **POLYAK, "passes": 2},
    {**GRPO, **SGD, "lr": 0.1, "passes": 4},
    {**GRPO, **ADAMW, "warmup": 0, "lr": 1e-4, "passes": 2},
    {**GRPO, **ADAMW, "warmup": 0, "lr": 3e-5, "passes": 8},
    *({**each, "advantage": SIGN, **ADAMW, "warmup": 0, "lr": 1e-4, "passes": 2} for each in ESSAY),
]


def wanted(seeds: Sequence[int], only: str | None) -> Iterator[Run]:
    """Yield the settings of every run, those of the comparison with all seeds first."""
    if only in (None, "speed"):
        yield from (
            {"part": "speed", "task": "quickstart", "seed": seed, **each, "steps": 8, "eval_every": 2}
            for seed in seeds
            for each in SPEED
        )
    if only in (None, "ablation"):
        yield from (
            {"part": "ablation", "task": task, "seed": 0, **each, "steps": 24, "eval_every": 24}
            for task in TASKS
            for each in LONG
        )


def main() -> None:
    """Make the missing runs, and print the tables of all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", choices=["speed", "ablation"])
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    parser.add_argument("--show", action="store_true", help="only print the tables")
    arguments = parser.parse_args()
    for each in [] if arguments.show else tasks.missing(RESULTS, list(wanted(arguments.seeds, arguments.only))):
        task, reward = TASKS[each["task"]]
        files = tasks.prepared(task, each["seed"] % MODELS, arguments.models)
        tasks.append(RESULTS, {**each, **small.run(each, files, reward)})
    show_speed(tasks.done(RESULTS))
    show_ablation(tasks.done(RESULTS))


def show_speed(runs: Sequence[Run]) -> None:
    """Print the accuracy by the number of answers, over the seeds."""
    print("\n| method | seeds | 128 answers | 256 | 384 | 512 | answers to 80 % |\n|---|---|---|---|---|---|---|")
    for name, those in by_settings(runs, "speed").items():
        points = zip(*(run["curve"] for run in those), strict=True)
        cells = [
            f"{spread([100 * sampled for _, sampled, _ in point])} / {spread([100 * greedy for *_, greedy in point])}"
            for point in points
        ]
        needed = [answers_to(0.8, run["curve"]) for run in those]
        reached = [each for each in needed if each is not None]
        few = f"{spread(reached, 0)} ({len(reached)} of {len(needed)})" if reached else "none"
        print(f"| {name} | {len(those)} | {' | '.join(cells)} | {few} |")


def answers_to(accuracy: float, curve: Sequence[Sequence[float]]) -> float | None:
    """Return how many answers were sampled until the sampled accuracy was reached, by linear interpolation."""
    per_step = small.PROMPTS * small.GROUP
    for (before, low, _), (after, high, _) in pairwise(curve):
        if low < accuracy <= high:
            return per_step * (before + (after - before) * (accuracy - low) / (high - low))
    return None


def show_ablation(runs: Sequence[Run]) -> None:
    """Print the accuracy after the last step, one row for each run."""
    print("\n| task | method | seed | sampled | greedy | entropy | attained |\n|---|---|---|---|---|---|---|")
    for run in runs:
        if run["part"] == "ablation":
            _, sampled, greedy = run["curve"][-1]
            way = [each for each in run["attained"][-12:] if each is not None]
            numbers = f"{100 * sampled:.1f} | {100 * greedy:.1f} | {fmean(run['entropy'][-4:]):.3f}"
            print(
                f"| {run['task']} | {label(run)} | {run['seed']} | {numbers} | {f'{fmean(way):.2f}' if way else ''} |"
            )


def by_settings(runs: Sequence[Run], part: str) -> Mapping[str, list[Run]]:
    """Group the runs of a part by everything but the seed."""
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run["part"] == part:
            groups[label(run)].append(run)
    return groups


def label(run: Run) -> str:
    """Describe the settings of a run: `grpo, adamw 0.0001 x 2`."""
    words = _words(run["objective"])
    words += [] if run["advantage"] == STANDARD else _words(run["advantage"])
    rate = "" if run["algorithm"]["name"] == "polyak" else f" {run['lr']:g}"
    clip = ", no norm clip" if run["algorithm"]["name"] == "adamw" and run["clip_norm"] > 1 else ""
    return f"{', '.join(words)}, {run['algorithm']['name']}{rate} x {run['passes']}{clip}"


def _words(options: Mapping[str, Any]) -> list[str]:
    return [options["name"], *(f"{key} {value}" for key, value in options.items() if key != "name")]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return mean ± standard error."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


if __name__ == "__main__":
    main()
