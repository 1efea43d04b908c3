"""Contenders take turns, never two at once: round after round each does the same work once."""

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
from benchmarks.suite.contenders import MACHINE, Contender
from benchmarks.suite.setting import Setting
from outdo.utils.errors import OutdoError

WARM_UP = 2
"""Turns that are not counted: caches fill, and what is made at first use is made."""
DISTURBED = 0.1
"""A turn during which others used more than this share of the cores does not count, if enough do."""
NOTICED = 0.03  # processor seconds: less cannot be told from the grain of the clock

Say = Callable[[str], None]


class ContenderError(OutdoError):
    """A contender's process ended; the message has its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One turn: what the contender says of it, and who else was at work."""

    seconds: float | None
    sampling: float | None
    tokens: int
    times: float = 1.0
    bytes: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    wall: float = 0.0  # seconds of the turn, with what the contender did not count
    used: float | None = None  # processor seconds of the contender; None where `/proc` does not say
    foreign: float | None = None  # processor seconds of all others

    @property
    def disturbed(self) -> bool:
        """Whether others were in the way."""
        cores = os.cpu_count() or 1
        return self.foreign is not None and self.foreign > max(NOTICED, DISTURBED * self.wall * cores)


@dataclass(slots=True, kw_only=True)
class Result:
    """What is known of a contender's part in a case."""

    turns: list[Told] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)  # what it said when it was ready
    memory: int | None = None  # bytes at most, above those of its start
    start_memory: int | None = None  # bytes when all was prepared
    failed: str = ""


class Running:
    """A contender's process. It leads a session of its own, so that all it starts ends with it."""

    def __init__(self, contender: Contender, setting: Setting) -> None:
        self.name = contender.name
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` does
        told = replace(setting, options=contender.options)
        threads = {name: str(setting.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.suite.worker", contender.name, told.dumps()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )
        try:
            self.about = self._answer()
        except ContenderError:
            self.close()
            raise
        self.start_memory = machine.memory(self.process.pid, "VmRSS") if machine.available() else None

    def turn(self) -> Told:
        """Let it do its work once."""
        measured = machine.available()
        busy, used = (machine.busy(), machine.used(self.process.pid)) if measured else (0.0, 0.0)
        began = os.times().elapsed
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None
        answer = self._answer()
        wall = os.times().elapsed - began
        if not measured:
            return Told(**answer, wall=wall)
        used = machine.used(self.process.pid) - used
        return Told(**answer, wall=wall, used=used, foreign=max(0.0, machine.busy() - busy - used))

    def peak(self) -> int | None:
        """Bytes at most so far, above those of the start."""
        if self.start_memory is None:
            return None
        return max(0, machine.memory(self.process.pid, "VmHWM") - self.start_memory)

    def close(self) -> None:
        """End it and all it started."""
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
            raise ContenderError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"its process ended with status {self.process.returncode}"


def run_case(
    setting: Setting,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    say: Say,
    warm_up: int = WARM_UP,
    measure: bool = True,
) -> dict[str, Result]:
    """Let all contenders do a case `rounds` times, in turns; with `measure` the machine's speed is taken as well.

    A contender that fails is out, and its result says why; the others go on.
    """
    results: dict[str, Result] = {}
    with ExitStack() as open_processes:
        running: list[Running] = []
        for contender in [*contenders, *([MACHINE] if measure else [])]:
            say(f"{setting.case.name}: {contender.name} prepares")
            results[contender.name] = Result()
            try:
                started = Running(contender, setting)
            except ContenderError as error:
                results[contender.name].failed = str(error)
                continue
            open_processes.callback(started.close)
            results[contender.name].about = started.about
            results[contender.name].start_memory = started.start_memory
            running.append(started)
        for number, each, told in _turns(running, results, range(1 - warm_up, rounds + 1)):
            say(f"{setting.case.name}: round {max(0, number)} of {rounds}: {each.name}")
            if number > 0:
                results[each.name].turns.append(told)
            results[each.name].memory = each.peak()
    return results


def _turns(
    running: list[Running], results: Mapping[str, Result], numbers: Iterable[int]
) -> Iterator[tuple[int, Running, Told]]:
    """Round number (below 1 while warming up), who, and what it took. Every other round goes the other way round."""
    for number in numbers:
        for each in list(running if number % 2 else reversed(running)):
            try:
                yield number, each, each.turn()
            except ContenderError as error:
                results[each.name].failed = str(error)
                running.remove(each)
