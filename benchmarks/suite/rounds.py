"""Run implementations in turn, never two at once: in every round each does the same work once."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from signal import SIGKILL
from typing import IO, Any

from benchmarks.suite import machine
from benchmarks.suite.implementations import MACHINE, Implementation
from benchmarks.suite.setting import Setting
from outdo.utils.errors import OutdoError
from outdo.utils.waiting_threads import TURNS

WARM_UP = 2
"""Turns that are not counted: they fill caches and do what is done at first use."""
DISTURBED = 0.1
"""A turn is disturbed if other processes used more than this share of the cores."""
NOTICED = 0.03  # processor seconds; less is within the resolution of the clock

Say = Callable[[str], None]


class ImplementationError(OutdoError):
    """The process of an implementation ended; the message has its last line of output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTurn:
    """One turn: the times that the implementation measured, and how busy the machine was."""

    seconds: float | None
    sampling: float | None
    tokens: int
    times: float = 1.0
    bytes: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    wall: float = 0.0  # seconds of the turn, including what the implementation does not measure
    used: float | None = None  # processor seconds of the implementation; None where `/proc` does not say
    foreign: float | None = None  # processor seconds of all others

    @property
    def disturbed(self) -> bool:
        """Whether other processes were busy."""
        cores = os.cpu_count() or 1
        return self.foreign is not None and self.foreign > max(NOTICED, DISTURBED * self.wall * cores)


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of an implementation in a case."""

    turns: list[TimedTurn] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)  # reported when it was ready
    memory: int | None = None  # peak bytes, above those at the start
    start_memory: int | None = None  # bytes when it was ready
    failed: str = ""


class Running:
    """The process of an implementation. It leads an own session, so that all processes it starts end with it."""

    def __init__(self, implementation: Implementation, setting: Setting) -> None:
        self.name = implementation.name
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` does
        own_setting = replace(setting, options=implementation.options)
        variables = {name: str(setting.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if implementation.name.startswith("outdo"):
            variables["GOMP_SPINCOUNT"] = TURNS  # which the command `outdo` sets
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.suite.worker", implementation.name, own_setting.dumps()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )
        try:
            self.about = self._answer()
        except ImplementationError:
            self.close()
            raise
        self.start_memory = machine.memory(self.process.pid, "VmRSS") if machine.available() else None

    def turn(self) -> TimedTurn:
        """Let it do its work once, and measure the turn."""
        measured = machine.available()
        busy, used = (machine.busy(), machine.used(self.process.pid)) if measured else (0.0, 0.0)
        began = os.times().elapsed
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ImplementationError(self._last_line()) from None
        answer = self._answer()
        wall = os.times().elapsed - began
        if not measured:
            return TimedTurn(**answer, wall=wall)
        used = machine.used(self.process.pid) - used
        return TimedTurn(**answer, wall=wall, used=used, foreign=max(0.0, machine.busy() - busy - used))

    def peak(self) -> int | None:
        """Return the peak bytes so far, above those at the start."""
        if self.start_memory is None:
            return None
        return max(0, machine.memory(self.process.pid, "VmHWM") - self.start_memory)

    def close(self) -> None:
        """End the process and all that it started."""
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ImplementationError(self._last_line())
        return json.loads(line)

    def _last_line(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"its process ended with status {self.process.returncode}"


def run_case(
    setting: Setting,
    implementations: Sequence[Implementation],
    *,
    rounds: int,
    say: Say,
    warm_up: int = WARM_UP,
    measure: bool = True,
) -> dict[str, Result]:
    """Run all implementations on a case `rounds` times, in turn; with `measure`, also measure the machine's speed.

    An implementation that fails takes no further part, and its result has the reason; the others continue.
    """
    results: dict[str, Result] = {}
    with ExitStack() as open_processes:
        running: list[Running] = []
        for implementation in [*implementations, *([MACHINE] if measure else [])]:
            say(f"{setting.case.name}: {implementation.name} is preparing")
            results[implementation.name] = Result()
            try:
                started = Running(implementation, setting)
            except ImplementationError as error:
                results[implementation.name].failed = str(error)
                continue
            open_processes.callback(started.close)
            results[implementation.name].about = started.about
            results[implementation.name].start_memory = started.start_memory
            running.append(started)
        for number, each, turn in _turns(running, results, range(1 - warm_up, rounds + 1)):
            say(f"{setting.case.name}: round {max(0, number)} of {rounds}: {each.name}")
            if number > 0:
                results[each.name].turns.append(turn)
            results[each.name].memory = each.peak()
    return results


def _turns(
    running: list[Running], results: Mapping[str, Result], numbers: Iterable[int]
) -> Iterator[tuple[int, Running, TimedTurn]]:
    """Yield the number of the round (below 1 in the warm-up), the process and its turn; odd and even rounds reverse."""
    for number in numbers:
        for each in list(running if number % 2 else reversed(running)):
            try:
                yield number, each, each.turn()
            except ImplementationError as error:
                results[each.name].failed = str(error)
                running.remove(each)
