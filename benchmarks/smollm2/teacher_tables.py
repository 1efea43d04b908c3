"""The table of the runs with teachers."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.smollm2.plan import LAST, SELF_TAUGHT, TAUGHT, TEACHER, Result
from benchmarks.smollm2.table_parts import HELD_OUT, of, rows

METHODS = {
    "grpo": "rewards alone",
    "sampled": "teacher, sampled token",
    "top_20": "teacher, top 20",
    "whole": "teacher, whole vocabulary",
    "answer": "itself, told the answer",
    "right": "itself, told a right answer, and rewards",
}
assert METHODS.keys() == {*TAUGHT, *SELF_TAUGHT}


def taught(runs: Sequence[Result]) -> str:
    """Held-out rewards before and after, and how far student and teacher are apart, in nats a token."""
    lines = [_line("the teacher, 60 steps", run) for run in runs if run["name"] == TEACHER]
    for method, title in METHODS.items():
        lines += [_line(title, run) for run in of(runs, "teachers", method)]
    head = (
        "| taught by | task | seed | reward, rows: before | after | sampled, last ten steps | distance | CPU seconds |"
    )
    return rows(head, lines)


def taught_and_forgotten(runs: Sequence[Result]) -> str:
    """The greedy rewards of the teacher and of the first seed of each method on what they were not trained on."""
    titles = {TEACHER: "the teacher"} | {f"teachers/{method}/0": title for method, title in METHODS.items()}
    made = [run for run in runs if run["name"] in titles and "remembered" in run]
    names = list(dict.fromkeys(name for run in made for name in run["remembered"]))
    lines = []
    for run in made:
        cells = (f"{run['remembered'][name]:.3f}" if name in run["remembered"] else "" for name in names)
        lines.append(f"| {titles[run['name']]} | {' | '.join(cells)} |")
    return rows(f"| taught by | {' | '.join(f'`{name}`' for name in names)} |", lines)


def _line(title: str, run: Result) -> str:
    low, high = run["after"][f"{HELD_OUT}_low"], run["after"][f"{HELD_OUT}_high"]
    measure = "divergence" if _course(run, "divergence") else "gap"
    course = _course(run, measure)
    distance = f"{fmean(course[:LAST]):.2f} → {fmean(course[-LAST:]):.2f}" if course else ""
    return (
        f"| {title} | `{run['task']}` | {run['seed']} | {run['before'][HELD_OUT]:.3f} "
        f"| {run['after'][HELD_OUT]:.3f} ({low:.3f} to {high:.3f}) | {fmean(run['curve']['reward'][-LAST:]):.3f} "
        f"| {distance} | {run['cpu_seconds']:,} |"
    )


def _course(run: Result, name: str) -> list[float]:
    return [value for value in run["curve"].get(name, []) if value is not None]
