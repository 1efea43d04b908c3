"""Print the tables of `docs/results.md` from the results: python -m benchmarks.smollm2.tables [--write]

`--write` puts each table into the page, between the two comments with its name.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from benchmarks.smollm2 import kinds
from benchmarks.smollm2.__main__ import results
from benchmarks.smollm2.plan import LAST, RATES, Result, planned
from benchmarks.smollm2.table_parts import (
    ALL_METHODS,
    ALL_TASKS,
    NOT_RUN,
    cell,
    mean_of,
    of,
    reached_after,
    rows,
    windows,
)
from benchmarks.smollm2.teacher_tables import taught, taught_and_forgotten
from benchmarks.smollm2.trl_tables import trl
from benchmarks.smollm2.update_tables import distance, passes

PAGE = Path("docs/results.md")


def learned(runs: Sequence[Result]) -> str:
    """Held-out rewards of each seed, before and after."""
    lines = []
    for task in ALL_TASKS:
        for run in of(runs, task, "grpo"):
            cells = []
            for name in ("rows", "kinds"):
                before, after = (run[when] for when in ("before", "after"))
                reward = f"{name}/greedy_reward"
                ends = f"{after[f'{reward}_low']:.3f} to {after[f'{reward}_high']:.3f}"
                cells += [f"{before[reward]:.3f} → {after[reward]:.3f} ({ends})"]
                cells += [f"{before[f'{name}/greedy']:.0%} → {after[f'{name}/greedy']:.0%}"]
            gain = run["after"]["rows/greedy_reward_low"] > run["before"]["rows/greedy_reward"]
            inside = all(band["inside"] for band in run["bands"])
            cells += ["yes" if holds else "no" for holds in (gain, inside)]
            lines.append(f"| `{task}` | {run['seed']} | {' | '.join(cells)} |")
    return rows(
        "| task | seed | reward, rows | right, rows | reward, kinds | right, kinds | gain | in the bands |", lines
    )


def bands(runs: Sequence[Result]) -> str:
    """The bands of `instructions`, and where the runs of outdo, and one with a broken advantage, are."""
    made = [*of(runs, "instructions", "grpo"), *of(runs, "instructions", "broken")]
    lines = []
    for run in made:
        _, method, seed = run["name"].split("/")
        cells = (f"{each['value']:.3f}{'' if each['inside'] else ', outside'}" for each in run["bands"])
        lines.append(f"| `{method}`, seed {seed} | {' | '.join(cells)} |")
    if not made:
        return NOT_RUN
    ends = (f"`{each['metric']}`, {each['steps']}: {each['low']} to {each['high']}" for each in made[0]["bands"])
    return rows(f"| | {' | '.join(ends)} |", lines)


def bits(runs: Sequence[Result]) -> str:
    """The weights of two runs of one seed."""
    lines = [
        f"| `{run['name']}` | {run['processor']} | {run['cpu_seconds']:,} | `{run['weights'][:16]}` |"
        for task in ALL_TASKS
        if (again := of(runs, task, "again"))
        for run in (of(runs, task, "grpo")[0], *again)
    ]
    return rows("| run | processor | CPU seconds | SHA-256 of the weights |", lines)


def followed(runs: Sequence[Result]) -> str:
    """Which kinds of instructions are followed before and after training with seed 0."""
    if not of(runs, "instructions", "grpo"):
        return NOT_RUN
    sampled = of(runs, "instructions", "grpo")[0].get("sampled", {})
    lines = []
    for kind, *counts in kinds.table():
        cells = [*counts, *sampled.get(kind, ("", ""))]
        lines.append(f"| `{kind}` | {' | '.join(map(str, cells))} |")
    head = "| kind | rows: asked | before | after | kinds: asked | before | after |"
    return rows(f"{head} training: asked | followed |", lines)


def cost(runs: Sequence[Result]) -> str:
    """What the runs of a task took, and what the record shows of them."""
    lines = []
    for task in ALL_TASKS:
        for run in of(runs, task, "grpo"):
            curve, after, before = run["curve"], run["after"], run["before"]
            lines.append(
                f"| `{task}` | {run['seed']} | {run['cpu_seconds']:,} | {run['tokens']:,.0f} "
                f"| {run['peak_bytes'] / 1e9:.1f} | {mean_of(curve, 'moved'):.0%} "
                f"| {before['reads/mean']:.2f} → {after['reads/mean']:.2f} "
                f"| {fmean(curve['entropy'][:LAST]):.2f} → {fmean(curve['entropy'][-LAST:]):.2f} "
                f"| {before['start_logprob']:.2f} → {after['start_logprob']:.2f} |"
            )
    head = "| task | seed | CPU seconds | tokens | peak GB | moved as intended | reads | entropy | under the start |"
    return rows(head, lines)


def forgotten(runs: Sequence[Result]) -> str:
    """The greedy rewards of each run on what it was not trained on, and those of the model before training."""
    made = [run for task in ALL_TASKS for run in of(runs, task, "grpo")]
    starts = [run["remembered_before"] for run in made if "remembered_before" in run]
    if not starts:
        return NOT_RUN
    names = list(starts[0])
    lines = [f"| before training | {' | '.join(f'{starts[0][name]:.3f}' for name in names)} |"]
    for run in made:
        cells = (f"{run['remembered'][name]:.3f}" if name in run["remembered"] else "" for name in names)
        lines.append(f"| `{run['task']}`, seed {run['seed']} | {' | '.join(cells)} |")
    return rows(f"| trained on | {' | '.join(f'`{name}`' for name in names)} |", lines)


def methods(runs: Sequence[Result]) -> str:
    """The methods on `instructions`, means over the seeds."""
    made = {name: of(runs, "instructions", name) for name in ALL_METHODS}
    made = {name: each for name, each in made.items() if each}
    if not made:
        return NOT_RUN
    start = fmean(fmean(run["curve"]["reward"][:LAST]) for each in made.values() for run in each)
    best = max(max(windows(run)) for each in made.values() for run in each)
    drifts = drifts_at_equal_reward(made)
    lines = []
    for name, each in made.items():
        counts = [[answers_until(run, start + share * (best - start)) for run in each] for share in (0.5, 0.8)]
        reached = [reached_after(count, ",.0f") for count in counts]
        rewards = " ".join(f"{run['after']['rows/greedy_reward']:.3f}" for run in each)
        lines.append(
            f"| `{name}` | {each[0]['lr']:g} | {rewards} "
            f"| {fmean(fmean(run['curve']['entropy'][-LAST:]) for run in each):.2f} "
            f"| {fmean(fmean(run['curve']['identical'][-LAST:]) for run in each):.1%} "
            f"| {fmean(mean_of(run['curve'], 'moved') for run in each):.0%} "
            f"| {fmean(run['after']['start_logprob'] for run in each):.2f} | {drifts[name]:.2f} "
            f"| {' | '.join(reached)} |"
        )
    head = "| method | lr | reward, rows, of each seed | entropy | identical | moved as intended | under the start |"
    return rows(f"{head} at equal reward | answers to 50 % | to 80 % |", lines)


def method_seeds(runs: Sequence[Result]) -> str:
    """Each seed of the methods on `instructions`; the first runs did not count different words."""
    lines = []
    for run in (run for name in ALL_METHODS for run in of(runs, "instructions", name)):
        lengths = run["curve"]["length"]
        words = [each.get("rows/greedy_distinct_words") for each in (run["before"], run["after"])]
        lines.append(
            f"| `{run['name'].split('/')[1]}` | {run['seed']} | {run['after']['kinds/greedy_reward']:.3f} "
            f"| {fmean(lengths[:LAST]):.0f} → {fmean(lengths[-LAST:]):.0f} | {run['after']['start_logprob']:.2f} "
            f"| {'' if None in words else ' → '.join(f'{share:.0%}' for share in words)} "
            f"| {run['peak_bytes'] / 1e9:.1f} |"
        )
    return rows("| method | seed | reward, kinds | length | under the start | different words | peak GB |", lines)


def drifts_at_equal_reward(made: Mapping[str, Sequence[Result]]) -> dict[str, float]:
    """Return the mean log-probability of greedy answers under the start, when the held-out reward is half-way.

    Half-way from the start to the lowest of the methods' last rewards; between evaluations both are interpolated.
    """
    points = {
        name: [[run["before"], *run["evaluations"]] for run in each] for name, each in made.items()
    }  # [seeds, evaluations] of each method
    start = fmean(run[0]["greedy_reward"] for each in points.values() for run in each)
    lowest = min(fmean(run[-1]["greedy_reward"] for run in each) for each in points.values())
    return {name: fmean(drift_at((start + lowest) / 2, run) for run in each) for name, each in points.items()}


def drift_at(reward: float, evaluations: Sequence[Result]) -> float:
    """Return the log-probability under the start at the first reward as high as this; NaN: there is none."""
    for before, after in pairwise(evaluations):
        low, high = before["greedy_reward"], after["greedy_reward"]
        if low < reward <= high:
            share = (reward - low) / (high - low)
            return before["start_logprob"] + share * (after["start_logprob"] - before["start_logprob"])
    return float("nan")


def answers_until(run: Result, reward: float, *, per_step: int = 32) -> float:
    """Return how many answers were sampled before the end of the first ten steps with such a mean; inf: never."""
    reached = (number for number, mean in enumerate(windows(run), 1) if mean >= reward)
    return next(reached, float("inf")) * LAST * per_step


def answers(runs: Sequence[Result]) -> str:
    """The first ten greedy answers of each held-out set, before and after training with seed 0."""
    parts = []
    for run in runs:
        if "answers" in run and not run["name"].startswith("trial/"):
            before, after = (run["answers"][when] for when in ("before", "after"))
            lines = [
                f"| {cell(old['prompt'])} | {cell(old['completion'])} | {old['reward']:.2f} "
                f"| {cell(new['completion'])} | {new['reward']:.2f} |"
                for old, new in zip(before, after, strict=True)
            ]
            head = "| question | before | reward | after | reward |"
            parts.append(f"### `{run['task']}`\n\n{rows(head, lines)}")
    return "\n\n".join(parts) or NOT_RUN


def missing(runs: Sequence[Result]) -> str:
    """The runs of the plan that are not made yet, and the command that makes them."""
    done = {run["name"] for run in runs}
    found: dict[str, int] = {}
    for each in planned(runs):
        if each.name not in done:
            beginning = each.name.rpartition("/")[0].partition("-")[0]
            found[beginning] = found.get(beginning, 0) + 1
    lines = [f"| {count} | `python -m benchmarks.smollm2 --only {name}` |" for name, count in found.items()]
    return rows("| runs | command |", lines)


def tuning(runs: Sequence[Result]) -> str:
    """The mean reward of the last ten steps at each learning rate."""
    lines = []
    for method in ALL_METHODS:
        each = of(runs, "tuning", method)
        if len(each) == len(RATES):
            cells = (f"{run['lr']:g}: {fmean(run['curve']['reward'][-LAST:]):.3f}" for run in each)
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return rows("| method | smallest rate | middle | largest |", lines)


TABLES: dict[str, Callable[[Sequence[Result]], str]] = {
    "learned": learned,
    "followed": followed,
    "bands": bands,
    "bits": bits,
    "cost": cost,
    "forgotten": forgotten,
    "tuning": tuning,
    "trl": trl,
    "methods": methods,
    "method_seeds": method_seeds,
    "taught": taught,
    "taught_and_forgotten": taught_and_forgotten,
    "passes": passes,
    "distance": distance,
    "missing": missing,
    "answers": answers,
}


def filled(text: str, runs: Sequence[Result]) -> str:
    """Return a page with the tables between the comments that have their names."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = pattern.sub(lambda _, b=begin, e=end, t=table: f"{b}\n\n{t(runs)}\n\n{e}", text)
    return text


def main() -> None:
    """Print all tables, or write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smollm2.tables")
    parser.add_argument("--write", action="store_true", help=f"write them into {PAGE}")
    runs = results()
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), runs), encoding="utf-8")
        return
    for name, table in TABLES.items():
        print(f"{name}\n\n{table(runs)}\n")


if __name__ == "__main__":
    main()
