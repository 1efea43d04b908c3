"""Ablations of target probabilities against GRPO: one factor at a time, equal samples.

    python benchmarks/target.py [--seeds 0 1 2 3 4] [--only speed|long|factor|ablation]

`speed` follows the accuracy over 8 steps and `long` over 24, on three tasks. `factor` changes one option of `target` at
a time, over 8 steps. All three have five seeds. `ablation` is the first exploration, over 24 steps with seed 0. 8
questions with 8 answers each per step. The runs of `small.py` go to `docs/methods/target_ablation.jsonl`, one line each
with all its settings. A run in the file is not made again, and several processes can share the work.
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
GOALS = {"quickstart": 0.8, "sparse": 0.2, "dense": 0.2}
"""The sampled accuracy of a task until which answers are counted."""
MODELS = 2
"""Warm-started models of a task: a run with an odd seed uses the second one."""

Run = dict[str, Any]
STANDARD, SIGN, TREE = {"name": "group_standardised"}, {"name": "sign"}, {"name": "tree", "scale": True}
CENTRED = {"name": "group_centred"}
ADAMW = {"algorithm": {"name": "adamw"}, "warmup": 8, "clip_norm": 1.0}
SGD = {"algorithm": {"name": "sgd"}, "warmup": 0, "clip_norm": 1e9}
POLYAK = {"algorithm": {"name": "polyak"}, "warmup": 0, "clip_norm": 1e9, "lr": 10.0}
OFTEN = {**ADAMW, "warmup": 0, "lr": 3e-5, "passes": 8}
GRPO = {"objective": {"name": "grpo"}, "advantage": STANDARD}


def target(eta: float = 0.5, **options: Any) -> Run:
    """Return the settings of a run with target probabilities."""
    return {"objective": {"name": "target", "eta": eta, **options}, "advantage": STANDARD}


ESSAY: Sequence[Run] = [
    {"objective": {"name": "target_essay"}},
    {  # differs in `count` alone
        "objective": {
            "name": "target",
            "rule": "power",
            "unsampled": "absorb",
            "limit": 1.0,
            "reduction": "sum",
            "count": "visits",
        },
        "advantage": STANDARD,
    },
]
ABLATION: Sequence[Run] = [
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
    {**target(eta=1.0), **OFTEN},
    {**GRPO, **SGD, "lr": 0.1, "passes": 4},
    {**GRPO, **ADAMW, "warmup": 0, "lr": 1e-4, "passes": 2},
    {**GRPO, **OFTEN},
    *({**each, "advantage": SIGN, **ADAMW, "warmup": 0, "lr": 1e-4, "passes": 2} for each in ESSAY),
    *(
        {**target(eta=1.0, reduction="sum", **options), **ADAMW, "warmup": 0, "clip_norm": 1e9, "lr": 3e-5, "passes": 8}
        for options in ({}, {"unsampled": "fixed"})
    ),
    {**GRPO, **ADAMW, "warmup": 0, "clip_norm": 1e9, "lr": 3e-5, "passes": 8},
    {**GRPO, **ADAMW, "warmup": 0, "lr": 6e-5, "passes": 8},
]


LONG: Sequence[Run] = [
    {**target(eta=1.0), **OFTEN},
    {**GRPO, **OFTEN},
    {**target(), **POLYAK, "passes": 2},
    {**GRPO, **SGD, "lr": 0.03, "passes": 4},
    {**target(eta=2.0), **OFTEN, "advantage": CENTRED},
    {**target(eta=1.0), **OFTEN, "passes": 4},
]
FACTORS: Sequence[Run] = [
    *(
        {**target(**{"eta": 1.0} | options), **OFTEN}
        for options in (
            {"unsampled": "fixed"},  # decisive tokens only
            {"unsampled": "absorb"},
            {"unsampled": "absorb", "keep": 0.9},
            {"count": "once"},
            {"merge": "none"},
            {"loss": "hinge", "merge": "none"},  # a token that has reached its target is left alone
            {"loss": "squared", "merge": "none"},
            {"rule": "power"},
            {"rule": "power", "power": 1.25},
            {"rule": "clip"},
            {"eta": 0.5},
            {"eta": 2.0},
            {"hold": True},
        )
    ),
    {**target(eta=1.0), **OFTEN, "advantage": SIGN},
    {**target(eta=1.0), **OFTEN, "advantage": TREE},
    {**target(eta=1.0, reduction="sum"), **OFTEN},  # with the clip of the gradient norm
    {**target(eta=1.0), **OFTEN, "passes": 1, "lr": 2e-4},
    {**target(eta=1.0), **OFTEN, "passes": 2, "lr": 1e-4},
    {**target(eta=1.0), **OFTEN, "passes": 4, "lr": 6e-5},
    {**GRPO, **OFTEN, "passes": 1, "lr": 2e-4},
    {**GRPO, **OFTEN, "passes": 4, "lr": 6e-5},
]


def wanted(seeds: Sequence[int], only: str | None) -> Iterator[Run]:
    """Yield the settings of every run, those of the comparison with `grpo` first."""
    parts: Mapping[str, tuple[Sequence[Run], Sequence[str], Sequence[int], int, int]] = {
        "speed": (SPEED, list(TASKS), seeds, 8, 2),
        "long": (LONG, list(TASKS), seeds, 24, 4),
        "factor": (FACTORS, ["dense", "quickstart", "sparse"], seeds, 8, 2),
        "ablation": (ABLATION, list(TASKS), [0], 24, 24),
    }
    for part, (runs, names, those, steps, every) in parts.items():
        if only in (None, part):
            yield from (
                {"part": part, "task": task, "seed": seed, **each, "steps": steps, "eval_every": every}
                for task in names
                for seed in those
                for each in runs
            )


def main() -> None:
    """Make the missing runs, and print the tables of all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", choices=["speed", "long", "factor", "ablation"])
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    parser.add_argument("--show", action="store_true", help="only print the tables")
    arguments = parser.parse_args()
    for each in [] if arguments.show else tasks.missing(RESULTS, list(wanted(arguments.seeds, arguments.only))):
        task, reward = TASKS[each["task"]]
        files = tasks.prepared(task, each["seed"] % MODELS, arguments.models)
        tasks.append(RESULTS, {**each, **small.run(each, files, reward)})
    for part in ("speed", "long", "factor"):
        show_curves(tasks.done(RESULTS), part)
    show_ablation(tasks.done(RESULTS))


def show_curves(runs: Sequence[Run], part: str) -> None:
    """Print the accuracy by the number of answers, over the seeds, a table for each task."""
    for task in TASKS:
        of_task = by_settings([run for run in runs if run["task"] == task], part)
        if not of_task:
            continue
        steps = [step for step, *_ in next(iter(of_task.values()))[0]["curve"]]
        answers = " | ".join(f"{step * small.PROMPTS * small.GROUP:,} answers" for step in steps)
        goal = GOALS[task]
        print(f"\n**{task}**\n\n| method | seeds | {answers} | answers to {goal:.0%} |")
        print("|---" * (len(steps) + 3) + "|")
        for name, those in of_task.items():
            points = zip(*(run["curve"] for run in those), strict=True)
            cells = [
                f"{spread([100 * each[1] for each in point])} / {100 * fmean(each[2] for each in point):.0f}"
                for point in points
            ]
            needed = [answers_to(goal, finest_curve(run, runs)) for run in those]
            reached = [each for each in needed if each is not None]
            few = f"{spread(reached, 0)} ({len(reached)} of {len(needed)})" if reached else "none"
            print(f"| {name} | {len(those)} | {' | '.join(cells)} | {few} |")


def finest_curve(run: Run, runs: Sequence[Run]) -> list[Sequence[float]]:
    """Return all points of a run: several parts may have measured it, after other steps."""
    same = [
        other
        for other in runs
        if all(other[key] == run[key] for key in ("task", "seed")) and label(other) == label(run)
    ]
    return sorted({point[0]: point for other in same for point in other["curve"]}.values())


def answers_to(accuracy: float, curve: Sequence[Sequence[float]]) -> float | None:
    """Return how many answers were sampled until the sampled accuracy was reached, by linear interpolation.

    If it was reached at the first point, these are all answers up to there.
    """
    per_step = small.PROMPTS * small.GROUP
    if curve[0][1] >= accuracy:
        return per_step * curve[0][0]
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
