"""The output of a run: a live progress bar on a terminal, one plain line per step elsewhere."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from outdo.run.progress_bar import Count, followed, progress
from outdo.utils.outcome import EVALUATIONS, left_out
from outdo.utils.text import between, counted, for_terminal

Item = TypeVar("Item")


class Display:
    """Prints on `console`; `live` overrides whether it is a terminal with a progress bar."""

    def __init__(self, console: Console | None = None, *, live: bool | None = None) -> None:
        self.console = console or Console()
        self.live = self.console.is_terminal if live is None else live
        self._bar: tuple[Progress, TaskID] | None = None
        self._reward: float | None = None
        self._started = (time.monotonic(), 0)
        self._rounding = math.inf

    def say(self, line: str) -> None:
        """Print one line of text as it is, except for control characters."""
        self.console.print(for_terminal(line), markup=False, highlight=False, soft_wrap=True)

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
        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(12), TextColumn("{task.fields[text]}"))
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
        """Print the line of a step."""
        is_first = index == self._started[1] + 1
        text = self._line(metrics, explained=self._rounding if is_first else math.inf)
        self._reward = metrics.get("reward", self._reward)
        self.advance(index, total, text)

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

        The sets that have names follow, each with the same numbers.
        """
        self._evaluated(f"after step {step}", numbers)
        for name in (each.removesuffix("/questions") for each in numbers if each.endswith("/questions")):
            of_set = {
                each.removeprefix(f"{name}/"): value for each, value in numbers.items() if each.startswith(f"{name}/")
            }
            self._evaluated(f"after step {step}, {name}", of_set)

    def _evaluated(self, when: str, numbers: Mapping[str, float]) -> None:
        shares = [line for kind in EVALUATIONS if (line := _share_line(kind, numbers))]
        rewards = [line for kind in EVALUATIONS if (line := _rewards_line(kind, numbers))]
        if shares:
            self.say(f"held-out questions right {when}: " + ", ".join(shares))
        if rewards:
            self.say(f"held-out reward {when}: " + ", ".join(rewards))

    def _line(self, metrics: Mapping[str, float], *, explained: float) -> str:
        parts = self._outcome(metrics)
        mismatch = metrics.get("sampling/sampling_logp_difference/max", 0.0)
        if mismatch > explained:
            parts.append(f"sampler and trainer differ by {mismatch:.2g} nats")
        if "sampling/corrected" in metrics:
            corrected = metrics["sampling/corrected"] * metrics["num_trained_tokens"]
            parts.append(f"corrected {counted(round(corrected), 'token')}")
        if not self.live:  # a progress bar must fit into 80 columns
            parts.append(f"length {metrics['completions/mean_length']:.0f}")
        if metrics["completions/clipped_ratio"]:
            parts.append(f"truncated {metrics['completions/clipped_ratio']:.0%}")
        if metrics.get("updates/refused"):
            parts.append("update refused: not finite")
        failures = sum(value for name, value in metrics.items() if name.startswith("reward_status/"))
        if failures:
            parts.append(f"{failures:.0f} without a reward")
        if metrics.get("num_without_verdict"):
            parts.append(f"{metrics['num_without_verdict']:.0f} without a verdict")
        speed = [] if self.live and "moved_right_way" in metrics else [f"{metrics['tokens_per_second']:,.0f} tokens/s"]
        return "  ".join([*parts, *speed])

    def _outcome(self, metrics: Mapping[str, float]) -> list[str]:
        """Return whether the tokens moved as they were pushed, then the rewards, or why there are none."""
        moved = [f"moved as intended {metrics['moved_right_way']:.0%}"] if "moved_right_way" in metrics else []
        if "reward" not in metrics:
            dropped = metrics.get("dynamic_sampling/dropped", 0) > 0
            return [*moved, "no group has an advantage" if dropped else "no answer has a reward"]
        change = "" if self._reward is None else f" ({metrics['reward'] - self._reward:+.3f})"
        right = [f"right {metrics['right']:.0%}"] if "right" in metrics else []
        differ = [] if self.live else _spread(metrics)
        return [*moved, f"reward {metrics['reward']:.3f}{change}", *right, *differ]


def _spread(metrics: Mapping[str, float]) -> list[str]:
    """Return in how many groups rewards differ, and how many have an advantage if these are not the same number."""
    differ, taught = 1 - metrics["frac_reward_zero_std"], 1 - metrics["frac_zero_advantage"]
    same = math.isclose(differ, taught, abs_tol=0.005)
    return [f"rewards differ {differ:.0%}", *([] if same else [f"with an advantage {taught:.0%}"])]


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
