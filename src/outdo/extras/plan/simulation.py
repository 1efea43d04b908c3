"""Discrete-event simulation of the loop: engines that decode answers, and trainers that take whole batches of them.

Two clocks: an engine counts decoding steps, in which each of its answers grows by one token, and a decoding step takes
seconds that depend on how many answers run and how long they are.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from outdo.extras.plan.lengths import Tokens

StepTime = Callable[[Any, Any], Any]
"""Seconds of a decoding step: of the number of running answers, and of the tokens in their cache."""

ENGINES = 64
"""Engines of which each answer is replayed. More of them are alike, and nearly all wait for the same longest answer."""

ANSWERS = 1024
"""Answers of a step that are followed in the asynchronous simulation. Larger clusters are divided by a number."""

DEVICE_HOURS = 50_000.0
"""Device hours between failures that end a job: 419 in 54 days on 16,384 GPUs (arXiv 2407.21783, table 5)."""

RESTART = 300.0
"""Seconds from a failure to the first step after it: noticed, started, weights read."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How one engine decodes its answers."""

    seconds: float
    busy: float  # mean running answers, as a share of the most that run
    alone: float  # seconds in which at most a tenth of them run


def replay(lengths: Tokens, prompt: float, slots: int, step: StepTime) -> Replay:
    """Decode answers on one engine, at most `slots` at a time, in their order.

    In the clock of decoding steps an answer that starts at s with length l ends at s + l, whatever a step takes.
    Between two events the number of running answers is constant, and the cache grows by it in each step.
    """
    starts = _starts(lengths, slots)
    ends = starts + lengths
    times = np.concatenate([starts, ends])
    change = np.concatenate([np.ones_like(starts), -np.ones_like(ends)])
    begun = np.concatenate([starts, -starts])
    order = np.lexsort((change, times))
    times = times[order]
    running = np.cumsum(change[order])[:-1]
    begun = np.cumsum(begun[order])[:-1]
    spans = np.diff(times)
    middle = (times[1:] + times[:-1]) / 2
    lasting = spans > 0
    running, spans = running[lasting], spans[lasting]
    cached = running * (prompt + middle[lasting]) - begun[lasting]
    seconds = spans * step(running, cached)
    whole = float(seconds.sum())
    most = float(running.max())
    return Replay(
        seconds=whole,
        busy=float((running * seconds).sum()) / (most * whole),
        alone=float(seconds[running <= max(1.0, 0.1 * most)].sum()),
    )


def _starts(lengths: Tokens, slots: int) -> Tokens:
    """Return the decoding step at which each answer starts: a waiting one as soon as another has ended."""
    starts = np.zeros(len(lengths))
    if len(lengths) <= slots:
        return starts
    ends = list(lengths[:slots])
    heapq.heapify(ends)
    for n in range(slots, len(lengths)):
        starts[n] = heapq.heappop(ends)
        heapq.heappush(ends, starts[n] + lengths[n])
    return starts


def sampling(
    lengths: Tokens, prompt: float, engines: int, slots: int, step: StepTime, *, followed: int = ENGINES
) -> Replay:
    """Return the replay of the engine that ends last, of those `followed`. Answers are dealt to the engines in turn."""
    engines = min(engines, len(lengths))
    shown = min(engines, followed)
    parts = [lengths[n::engines] for n in _spread(lengths, engines, shown)]
    replays = [replay(part, prompt, slots, step) for part in parts]
    return max(replays, key=lambda replayed: replayed.seconds)


def _spread(lengths: Tokens, engines: int, shown: int) -> list[int]:
    """Return the engines to replay: with the longest answer, and with the most tokens, before all others."""
    if shown == engines:
        return list(range(engines))
    whole = len(lengths) // engines * engines
    table = lengths[:whole].reshape(-1, engines)
    first = np.argsort(-table.max(axis=0), kind="stable")[: shown // 2]
    second = np.argsort(-table.sum(axis=0), kind="stable")[: shown - len(first)]
    return sorted({*map(int, first), *map(int, second)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The asynchronous loop: engines beside trainers."""

    lengths: Tokens  # of the answers, in the order in which they are asked for; reused from the beginning
    batch: int  # answers of a step
    prompt: float
    slots: int  # answers that run at the same time on all engines
    engines: float
    step: StepTime  # of one engine
    training: float  # seconds of a step, without waiting
    update: float  # seconds in which nobody works
    staleness: float  # weight updates by which an answer may be behind, counted in steps
    in_order: bool = True  # a batch holds the answers that were asked for first, or those that ended first
    parts: int = 1  # of a batch, which the trainer takes one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A step of the loop after its beginning."""

    seconds: float
    trainer_idle: float
    engine_idle: float  # 1 - running answers / the most that ran, in seconds of a step
    oldest: int  # updates by which the oldest answer was behind when it was trained on


def simulate(loop: Loop, steps: int = 3, warm_up: int = 2) -> Steady:
    """Follow every answer of some steps, and return the mean step after the first ones.

    An answer starts when a slot is free and fewer than (staleness + version + 1) × batch have been started. With
    `in_order`, step k trains on the answers k × batch ... (k + 1) × batch, however long they take: speed does not
    decide what is trained on, and none is more than `staleness` updates behind.
    """
    run = _Run(loop)
    for _ in range(warm_up):
        run.one_step()
    start, idle, lazy = run.now, run.trainer_idle, run.engine_idle
    for _ in range(steps):
        run.one_step()
    return Steady(
        seconds=(run.now - start) / steps,
        trainer_idle=(run.trainer_idle - idle) / steps,
        engine_idle=(run.engine_idle - lazy) / steps,
        oldest=run.oldest,
    )


class _Run:
    """The state of the simulation: a heap of running answers by the decoding step in which they end."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.now = self.clock = self.trainer_idle = self.engine_idle = 0.0
        self.version = self.started = self.trained = self.oldest = 0
        self.running: list[tuple[float, int, float]] = []  # end, number, start: in decoding steps
        self.begun = 0.0  # sum of the starts
        self.births: dict[int, int] = {}  # version at which an answer that is not trained yet was started
        self.ended: set[int] = set()  # numbers, with in_order
        self.next = 0  # the first answer that has not ended, with in_order
        self.finished: list[int] = []  # numbers, in the order in which they ended

    def one_step(self) -> None:
        """Wait for each part of a batch, train on it, and update the weights."""
        loop = self.loop
        for part in range(loop.parts):
            need = loop.batch * (part + 1) // loop.parts - loop.batch * part // loop.parts
            before = self.now
            self._decode(until=None, need=need)
            self.trainer_idle += self.now - before
            self._take(need)
            self._decode(until=self.now + loop.training / loop.parts, need=None)
        self.now += loop.update
        self.engine_idle += loop.update
        self.trainer_idle += loop.update
        self.version += 1

    def _ready(self) -> int:
        return self.next - self.trained if self.loop.in_order else len(self.finished)

    def _take(self, need: int) -> None:
        taken = range(self.trained, self.trained + need) if self.loop.in_order else self.finished[:need]
        for number in taken:
            self.oldest = max(self.oldest, self.version - self.births.pop(number))
        self.trained += need
        self.finished = self.finished[need:]

    def _decode(self, until: float | None, need: int | None) -> None:
        """Run the engines until a time, or until a number of answers is ready."""
        loop = self.loop
        while need is None or self._ready() < need:
            self._start()
            left = float("inf") if until is None else until - self.now
            if left <= 0:
                return
            if not self.running:
                assert until is not None, "no answer runs, and the trainer waits for one"
                self.engine_idle += left
                self.now = until
                return
            count = len(self.running)
            end = self.running[0][0]
            tokens = count * (loop.prompt + (self.clock + end) / 2) - self.begun
            pace = float(loop.step(count / loop.engines, tokens / loop.engines))
            spent = min((end - self.clock) * pace, left)
            self.now += spent
            self.engine_idle += spent * (1 - count / min(loop.slots, loop.batch * (1 + loop.staleness)))
            self.clock = end if spent < left else self.clock + spent / pace
            while self.running and self.running[0][0] <= self.clock:
                self._end()

    def _start(self) -> None:
        loop = self.loop
        allowed = int((loop.staleness + self.version + 1) * loop.batch)
        while len(self.running) < loop.slots and self.started < allowed:
            length = float(loop.lengths[self.started % len(loop.lengths)])
            heapq.heappush(self.running, (self.clock + length, self.started, self.clock))
            self.births[self.started] = self.version
            self.begun += self.clock
            self.started += 1

    def _end(self) -> None:
        _, number, start = heapq.heappop(self.running)
        self.begun -= start
        if not self.loop.in_order:
            self.finished.append(number)
            return
        self.ended.add(number)
        while self.next in self.ended:
            self.ended.remove(self.next)
            self.next += 1


def goodput(step: float, devices: int, every: int) -> float:
    """Return the share of time that ends in steps which are kept, over a long run with failures.

    Failures come at random, a = `DEVICE_HOURS` / devices apart on average. Each costs `RESTART` seconds, and the steps
    since the newest checkpoint, which is written every c = `every` × step seconds. Between two failures there are
    1 / (exp(c/a) - 1) checkpoints on average, so that the share is c / (exp(c/a) - 1) / (a + RESTART).
    """
    apart, between = DEVICE_HOURS * 3600 / devices, every * step
    return between / math.expm1(min(between / apart, 700.0)) / (apart + RESTART)
