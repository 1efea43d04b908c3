"""Print the tables of `docs/results.md` from the results: python -m benchmarks.smollm2.tables [--write]

`--write` puts each table into the page, between the two comments with its name.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.smollm2.__main__ import results
from benchmarks.smollm2.plan import LAST, RATES, TASKS, Result

PAGE = Path("docs/results.md")


def of(runs: Sequence[Result], task: str, method: str) -> list[Result]:
    """Return the runs of a method on a task, one for each seed."""
    return [run for run in runs if run["name"].startswith(f"{task}/{method}/")]


def rows(head: str, lines: Sequence[str]) -> str:
    """Return a table of Markdown."""
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *lines])


def learned(runs: Sequence[Result]) -> str:
    """Held-out rewards of each seed, before and after."""
    lines = []
    for task in TASKS:
        for run in of(runs, task, "grpo"):
            cells = []
            for name in ("rows", "kinds"):
                before, after = (run[when] for when in ("before", "after"))
                reward = f"{name}/greedy_reward"
                ends = f"{after[f'{reward}_low']:.3f} to {after[f'{reward}_high']:.3f}"
                cells += [f"{before[reward]:.3f} → {after[reward]:.3f} ({ends})"]
                cells += [f"{before[f'{name}/greedy']:.0%} → {after[f'{name}/greedy']:.0%}"]
            gain = run["after"]["rows/greedy_reward_low"] > run["before"]["rows/greedy_reward"]
            lines.append(f"| `{task}` | {run['seed']} | {' | '.join(cells)} | {'yes' if gain else 'no'} |")
    return rows("| task | seed | reward, rows | right, rows | reward, kinds | right, kinds | gain |", lines)


def cost(runs: Sequence[Result]) -> str:
    """What the runs of a task took, and what the record shows of them."""
    lines = []
    for task in TASKS:
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
    """The greedy rewards on the tasks that a run was not trained on; before training they are those of the runs."""
    start = {
        task: of(runs, task, "grpo")[0]["before"]["rows/greedy_reward"] for task in TASKS if of(runs, task, "grpo")
    }
    lines = []
    for task in TASKS:
        for run in of(runs, task, "grpo"):
            cells = (f"{run['remembered'][other]:.3f}" if other in run["remembered"] else "" for other in TASKS)
            lines.append(f"| `{task}`, seed {run['seed']} | {' | '.join(cells)} |")
    first = f"| before training | {' | '.join(f'{start[task]:.3f}' if task in start else '' for task in TASKS)} |"
    return rows(f"| trained on | {' | '.join(f'`{task}`' for task in TASKS)} |", [first, *lines])


def methods(runs: Sequence[Result]) -> str:
    """The methods on `instructions`, means over the seeds."""
    made = {name: of(runs, "instructions", name) for name in ("grpo", "lora", "dapo", "gspo", "target")}
    made = {name: each for name, each in made.items() if each}
    start = fmean(fmean(run["curve"]["reward"][:LAST]) for each in made.values() for run in each)
    best = max(max(windows(run)) for each in made.values() for run in each)
    lines = []
    for name, each in made.items():
        reached = [
            f"{fmean(answers_until(run, start + share * (best - start)) for run in each):,.0f}" for share in (0.5, 0.8)
        ]
        rewards = " ".join(f"{run['after']['rows/greedy_reward']:.3f}" for run in each)
        lines.append(
            f"| `{name}` | {each[0]['lr']:g} | {rewards} "
            f"| {fmean(fmean(run['curve']['entropy'][-LAST:]) for run in each):.2f} "
            f"| {fmean(fmean(run['curve']['identical'][-LAST:]) for run in each):.1%} "
            f"| {fmean(mean_of(run['curve'], 'moved') for run in each):.0%} "
            f"| {fmean(run['after']['start_logprob'] for run in each):.2f} | {' | '.join(reached)} |"
        )
    head = "| method | lr | reward, rows, of each seed | entropy | identical | moved as intended | under the start |"
    return rows(f"{head} answers to 50 % | to 80 % |", lines)


def windows(run: Result) -> list[float]:
    """Return the mean rewards of each ten steps."""
    reward = run["curve"]["reward"]
    return [fmean(reward[first : first + LAST]) for first in range(0, len(reward), LAST)]


def answers_until(run: Result, reward: float, *, per_step: int = 32) -> float:
    """Return how many answers were sampled before the end of the first ten steps with such a mean; inf: never."""
    reached = (number for number, mean in enumerate(windows(run), 1) if mean >= reward)
    return next(reached, float("inf")) * LAST * per_step


def trl(runs: Sequence[Result]) -> str:
    """The mean rewards of each ten steps, lowest and highest of the seeds, of outdo and of TRL."""
    both = {"outdo": of(runs, "instructions", "grpo"), "TRL": of(runs, "instructions", "trl")}
    if not all(both.values()):
        return "not run yet"
    lines = []
    for number in range(len(windows(both["outdo"][0]))):
        ends = {name: [windows(run)[number] for run in each] for name, each in both.items()}
        overlap = max(map(min, ends.values())) <= min(map(max, ends.values()))
        cells = (f"{min(each):.3f} to {max(each):.3f}" for each in ends.values())
        steps = f"{number * LAST + 1} to {(number + 1) * LAST}"
        lines.append(f"| {steps} | {' | '.join(cells)} | {'yes' if overlap else 'no'} |")
    for title, key, unit in (("processor seconds", "cpu_seconds", 1), ("peak GB", "peak_bytes", 1e9)):
        cells = (f"{fmean(run[key] / unit for run in each):,.1f}" for each in both.values())
        lines.append(f"| {title} | {' | '.join(cells)} | |")
    return rows("| steps | outdo | TRL | overlap |", lines)


def tuning(runs: Sequence[Result]) -> str:
    """The mean reward of the last ten steps at each learning rate."""
    lines = []
    for method in ("grpo", "lora", "dapo", "gspo", "target"):
        each = of(runs, "tuning", method)
        if len(each) == len(RATES):
            cells = (f"{run['lr']:g}: {fmean(run['curve']['reward'][-LAST:]):.3f}" for run in each)
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return rows("| method | smallest rate | middle | largest |", lines)


def mean_of(curve: Result, name: str) -> float:
    return fmean(value for value in curve[name] if value is not None)


TABLES: dict[str, Callable[[Sequence[Result]], str]] = {
    "learned": learned,
    "cost": cost,
    "forgotten": forgotten,
    "tuning": tuning,
    "trl": trl,
    "methods": methods,
}


def main() -> None:
    """Print all tables, or write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smollm2.tables")
    parser.add_argument("--write", action="store_true", help=f"write them into {PAGE}")
    write, runs = parser.parse_args().write, results()
    text = PAGE.read_text()
    for name, table in TABLES.items():
        if not write:
            print(f"{name}\n\n{table(runs)}\n")
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = pattern.sub(lambda _, b=begin, e=end, t=table: f"{b}\n{t(runs)}\n{e}", text)
    if write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
