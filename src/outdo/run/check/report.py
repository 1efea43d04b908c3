"""Print what `preflight.check` found."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outdo.rewards.types import Status
from outdo.run.check import cost
from outdo.run.check.preflight import Report
from outdo.run.check.reward_trials import Trial
from outdo.utils.text import counted, one_line

LONGEST_SHOWN = 600
"""Characters of a prompt or completion that are printed."""


def show(report: Report, console: Console) -> None:
    """Print a report: prompts, rewards, arithmetic, memory, notes, warnings, errors, and how many there are."""
    for number, prompt in enumerate(report.prompts, 1):
        _heading(console, f"Prompt {number} of {len(report.prompts)}")
        console.print(_plain(prompt))
    if report.trials:
        _heading(console, "Rewards of answers to the first question")
        console.print(_trials_table(report.trials))
    if report.arithmetic:
        _heading(console, "Arithmetic")
        console.print("\n".join(arithmetic_lines(report)), highlight=False, markup=False)
    if report.memory and not report.errors:  # it was estimated with what is wrong
        _heading(console, "Memory, estimated")
        console.print(_memory_table(report))
    _list(console, "Notes", report.notes)
    _list(console, "Warnings", report.warnings)
    _list(console, "Errors", report.errors)
    style = "bold red" if report.errors else "bold yellow" if report.warnings else "bold green"
    console.print(Text(f"\n{summary(report)}", style=style))


def summary(report: Report) -> str:
    """Return how many errors, warnings and notes a report has: `No errors, 2 warnings, 5 notes`."""
    numbers = {"error": len(report.errors), "warning": len(report.warnings), "note": len(report.notes)}
    parts = [counted(count, name) if count else f"no {name}s" for name, count in numbers.items()]
    return ", ".join(parts).capitalize()


def arithmetic_lines(report: Report) -> list[str]:
    """Return the run in numbers, a line each; the first describes one step."""
    numbers, recipe = report.arithmetic, report.recipe
    if numbers is None:
        return []
    train, per_step = recipe.train, numbers.optimiser_steps
    return [
        f"one step: {counted(numbers.prompts, 'question')} × {counted(numbers.group, 'answer')} = "
        f"{counted(numbers.sequences, 'sequence')}, at most {counted(numbers.tokens, 'token')}",
        f"optimiser steps in it: {per_step} (passes {train.passes} × minibatches {train.minibatches})",
        f"the run: {counted(recipe.steps, 'step')}, {counted(numbers.optimiser_steps_in_all, 'optimiser step')}, "
        f"{counted(numbers.epochs, 'epoch')}",
    ]


def _heading(console: Console, title: str) -> None:
    console.print(Text(f"\n{title}", style="bold"))


def _plain(text: str) -> Text:
    """Return text from a file so that rich's markup and control characters have no effect on the terminal."""
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} ... ({len(text):,} characters)"
    return Text("\n".join(one_line(line) for line in shown.splitlines()))


def _list(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        _heading(console, title)
        for line in lines:
            console.print(Text("- ").append_text(_plain(line)))


def _trials_table(trials: Sequence[Trial]) -> Table:
    table = Table("kind", "reward", "answer", box=None)
    for trial in trials:
        ok = trial.scored.status is Status.ok
        value = f"{trial.scored.value:g}" if ok else trial.scored.status.value
        table.add_row(trial.kind, value, _plain(trial.completion) if trial.completion else Text("(empty)", style="dim"))
    return table


def _memory_table(report: Report) -> Table:
    """Return the memory of the run beside that of the alternatives, by purpose."""
    columns = report.alternatives or {"": report.memory}
    titles = [f"{name} (this run)".strip() if parts is report.memory else name for name, parts in columns.items()]
    table = Table("purpose", *(f"GiB, {title}" if title else "GiB" for title in titles), box=None)
    for name in dict.fromkeys(name for parts in columns.values() for name in parts):
        table.add_row(name, *(f"{parts[name] / 2**30:.2f}" if name in parts else "" for parts in columns.values()))
    table.add_row(Text("at the peak", style="bold"), *(f"{cost.peak(parts) / 2**30:.2f}" for parts in columns.values()))
    return table
