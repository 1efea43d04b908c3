"""The table of outdo beside TRL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import isinf
from statistics import fmean

from benchmarks.smollm2.plan import LAST, Result
from benchmarks.smollm2.table_parts import ALL_TASKS, HELD_OUT, NOT_RUN, of, reached_after, rows, windows


def trl(runs: Sequence[Result]) -> str:
    """The mean rewards of each ten steps, lowest and highest of the seeds, of outdo and of TRL."""
    tables = [trl_on(task, runs) for task in ALL_TASKS if of(runs, task, "grpo") and of(runs, task, "trl")]
    return "\n\n".join(tables) or NOT_RUN


def trl_on(task: str, runs: Sequence[Result]) -> str:
    """The same on one task."""
    both = {"outdo": of(runs, task, "grpo"), "TRL": of(runs, task, "trl")}
    lines = []
    for number in range(len(windows(both["outdo"][0]))):
        ends = {name: [windows(run)[number] for run in each] for name, each in both.items()}
        overlap = max(map(min, ends.values())) <= min(map(max, ends.values()))
        cells = (f"{min(each):.3f} to {max(each):.3f}" for each in ends.values())
        steps = f"{number * LAST + 1} to {(number + 1) * LAST}"
        lines.append(f"| {steps} | {' | '.join(cells)} | {'yes' if overlap else 'no'} |")
    held_out = {name: [run["evaluations"][-1][HELD_OUT] for run in each] for name, each in both.items()}
    cells = (f"{min(each):.3f} to {max(each):.3f}" for each in held_out.values())
    lines.append(f"| held-out reward, rows | {' | '.join(cells)} | |")
    start, goal = both["outdo"][0]["before"][HELD_OUT], min(map(fmean, held_out.values()))
    timed = {**both, "outdo": [*both["outdo"], *of(runs, task, "beside_trl")]}
    beside = {name: on_processors(each, timed.values()) for name, each in timed.items()}
    measured: dict[str, tuple[Mapping[str, list[Result]], Callable[[Result], float]]] = {
        f"steps to {goal:.3f} of it": (both, lambda run: steps_until(goal, start, run)),
        "the same in seconds": (beside, lambda run: seconds_until(goal, start, run)),
        "processor seconds": (beside, lambda run: run["cpu_seconds"]),
        "peak GB": (beside, lambda run: run["peak_bytes"] / 1e9),
    }
    for title, (made, value) in measured.items():
        cells = (reached_after([*map(value, each)], ",.1f") if each else "" for each in made.values())
        lines.append(f"| {title} | {' | '.join(cells)} | |")
    return rows(f"| `{task}`, steps | outdo | TRL | overlap |", lines)


def on_processors(made: Sequence[Result], groups: Iterable[Sequence[Result]]) -> list[Result]:
    """Return the runs on the processors on which every group has a run."""
    shared = set.intersection(*({run["processor"] for run in each} for each in groups))
    return [run for run in made if run["processor"] in shared]


def steps_until(reward: float, start: float, run: Result) -> float:
    """Return after how many steps the held-out reward is so high, interpolated between evaluations; inf: never."""
    points = [(0, start), *((each["step"], each[HELD_OUT]) for each in run["evaluations"])]
    for (before, low), (after, high) in pairwise(points):
        if low < reward <= high:
            return before + (after - before) * (reward - low) / (high - low)
    return float("inf")


def seconds_until(reward: float, start: float, run: Result) -> float:
    """Return after how many seconds of steps the held-out reward is so high; inf: never."""
    steps = steps_until(reward, start, run)
    if isinf(steps):
        return steps
    seconds = [*run["curve"]["seconds"], 0.0]  # the last step is whole
    return sum(seconds[: int(steps)]) + steps % 1 * seconds[int(steps)]
