"""The output of a run: a live progress bar on a terminal, one plain line per step elsewhere."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from outdo.run.progress_bar import Count, followed, progress
from outdo.run.step_line import fitting, legend, step_parts, words_of_evaluation
from outdo.utils.outcome import EVALUATIONS, left_out
from outdo.utils.text import between, for_terminal

Item = TypeVar("Item")

WIDE = 100
"""Columns of a terminal from which on a bar is drawn beside the numbers of a step."""
BAR = 12
"""Its columns."""
TIME_LEFT = len("99:59:59")


class Display:
    """Prints on `console`; `live` overrides whether it is a terminal with a progress bar. `verbose` prints notes."""

    def __init__(self, console: Console | None = None, *, live: bool | None = None, verbose: bool = False) -> None:
        self.console = console or Console()
        self.live = self.console.is_terminal if live is None else live
        self.verbose = verbose
        self._notes: list[str] = []
        self._explained: set[str] = set()
        self._bar: tuple[Progress, TaskID] | None = None
        self._reward: float | None = None
        self._started = (time.monotonic(), 0)
        self._rounding = math.inf

    def say(self, line: str) -> None:
        """Print one line of text as it is, except for control characters."""
        self.console.print(for_terminal(line), markup=False, highlight=False, soft_wrap=True)

    def say_wrapped(self, line: str) -> None:
        """Print one line of text; on a terminal it is broken between words."""
        self.console.print(for_terminal(line), markup=False, highlight=False, soft_wrap=not self.console.is_terminal)

    def note(self, line: str) -> None:
        """Keep a line for the run folder; print it only if the display is `verbose`."""
        self._notes.append(line)
        if self.verbose:
            self.say(line)

    def warn(self, warning: str) -> None:
        """Print a warning, and keep it with the notes; one that is among them already is not said twice."""
        if (line := f"warning: {warning}") not in self._notes:
            self._notes.append(line)
            self.say(line)

    def take_notes(self) -> list[str]:
        """Return the notes and warnings since the last call."""
        notes, self._notes = self._notes, []
        return notes

    @contextmanager
    def steps(self, done: int, total: int, *, rounding: float = math.inf) -> Iterator[None]:
        """Show the progress of steps `done + 1` to `total` inside a `with` block.

        The line of the first of them has the difference between sampler and trainer if it is more than `rounding` nats.
        """
        self._started = (time.monotonic(), done)
        self._rounding = rounding
        if not self.live:
            yield
            return
        drawn = [BarColumn(BAR)] if self.console.width >= WIDE else []
        columns = (TextColumn("step"), MofNCompleteColumn(), *drawn, TextColumn("{task.fields[text]}"))
        with Progress(*columns, TimeRemainingColumn(compact=True), console=self.console) as bar:
            self._bar = (bar, bar.add_task("", total=total, completed=done, text=""))
            try:
                yield
            finally:
                self._bar = None

    @contextmanager
    def working(self, what: str, count: Count | None = None) -> Iterator[None]:
        """Show on a terminal while a `with` block runs how much of it is done: between steps, beside their bar."""
        if not self.live:
            yield
        elif self._bar is None:
            with progress(what, count, console=self.console):
                yield
        else:
            bar, task = self._bar
            text = bar.tasks[0].fields["text"]
            bar.update(task, text=what)
            with followed(count, lambda done, total: bar.update(task, text=f"{what} {done}/{total}")):
                yield
            bar.update(task, text=text)

    def track(self, items: Iterable[Item], *, total: int, what: str, stays: bool = True) -> Iterator[Item]:
        """Iterate over `items`, with a progress bar on a terminal, which `stays` there afterwards or disappears."""
        with Progress(console=self.console, disable=not self.live, transient=not stays) as bar:
            yield from bar.track(items, total=total, description=what)

    def step(self, index: int, total: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a step; before it, what each of its words means that no line had before."""
        is_first = index == self._started[1] + 1
        parts = step_parts(metrics, last_reward=self._reward, rounding=self._rounding if is_first else math.inf)
        self._reward = metrics.get("reward", self._reward)
        if self.live:
            parts = fitting(parts, self._room(total))
        self._explain(f"step {index}", [part.word for part in parts])
        self.advance(index, total, "  ".join(part.text for part in parts))

    def _explain(self, where: str, words: Iterable[str]) -> None:
        """Print what those words of the line of a step or an evaluation mean that were not explained yet."""
        if new := [word for word in words if word not in self._explained]:
            self._explained |= {*new}
            self.say_wrapped(f"in the line of {where}: {legend(new)}")

    def _room(self, total: int) -> int:
        """Return how many characters the bar of the steps leaves for their numbers."""
        columns = ["step", f"{total}/{total}", *([" " * BAR] if self.console.width >= WIDE else []), " " * TIME_LEFT]
        return self.console.width - sum(len(column) + 1 for column in columns)

    def advance(self, index: int, total: int, text: str) -> None:
        """Show that a step has ended and a text about it, beside the bar of `steps` or on a line with the time left."""
        if self._bar:
            bar, task = self._bar
            bar.update(task, completed=index, text=text)
            return
        since, done = self._started
        left = (time.monotonic() - since) / max(1, index - done) * (total - index)
        self.say(f"step {index}/{total}  {text}  {_duration(left)} left")

    def evaluated(self, step: int, numbers: Mapping[str, float]) -> None:
        """Print the shares of right answers of an evaluation, or its mean rewards, with their confidence intervals.

        Before them is what each of their words means that no line had before. The sets that have names follow, each
        with the same numbers.
        """
        self._evaluated(f"after step {step}", numbers)
        for name in (key.removesuffix("/questions") for key in numbers if key.endswith("/questions")):
            of_set = {
                key.removeprefix(f"{name}/"): value for key, value in numbers.items() if key.startswith(f"{name}/")
            }
            self._evaluated(f"after step {step}, {name}", of_set)

    def _evaluated(self, when: str, numbers: Mapping[str, float]) -> None:
        shares = [line for kind in EVALUATIONS if (line := _share_line(kind, numbers))]
        rewards = [line for kind in EVALUATIONS if (line := _rewards_line(kind, numbers))]
        if shares or rewards:
            self._explain("an evaluation", words_of_evaluation([*shares, *rewards]))
        if shares:
            self.say(f"held-out questions right {when}: " + ", ".join(shares))
        if rewards:
            self.say(f"held-out reward {when}: " + ", ".join(rewards))


def _share_line(kind: str, numbers: Mapping[str, float]) -> str:
    """Return the share of right answers of an evaluation, and how many have no verdict; nothing where all do."""
    missing = left_out(kind, numbers)
    if kind not in numbers:
        return f"{kind} {missing}" if missing else ""
    interval = f"{numbers[f'{kind}_low']:.1%} to {numbers[f'{kind}_high']:.1%}"
    return f"{kind} {numbers[kind]:.1%} ({'; '.join(filter(None, [interval, missing]))})"


def _rewards_line(kind: str, numbers: Mapping[str, float]) -> str:
    """Return the mean reward of an evaluation and its parts; nothing if it is the share of right answers itself."""
    name, prefix = f"{kind}_reward", f"{kind}_rewards/"
    reward, missing = numbers.get(name), left_out(name, numbers)
    if reward is None:
        return f"{kind} {missing}" if missing else ""
    if math.isclose(reward, numbers.get(kind, math.inf), abs_tol=1e-9):
        return ""
    parts = [
        f"{name.removeprefix(prefix).removesuffix('/mean')} {value:.3f}"
        for name, value in numbers.items()
        if name.startswith(prefix)
    ]
    interval = between(numbers[f"{name}_low"], numbers[f"{name}_high"], "{:.3f}".format)
    return f"{kind} {reward:.3f} ({'; '.join(filter(None, [interval, missing, ', '.join(parts)]))})"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
