"""What the rounds say: medians with their spread, ratios round by round, and how far the machine's floor is."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.suite.cases import Case
from benchmarks.suite.contenders import MACHINE, OWN
from benchmarks.suite.floor import Floor, Weights, floor
from benchmarks.suite.rounds import Result, Told

ENOUGH = 2
"""Undisturbed rounds of a pair with which the disturbed ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of some rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None of nothing."""
        return cls(median=median(values), low=min(values), high=max(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contender in a case. Ratios are its seconds or bytes over outdo's, round by round: above 1, outdo is ahead.

    outdo itself has none.
    """

    name: str
    seconds: Spread | None = None
    sampling: Spread | None = None
    ratio: Spread | None = None
    sampling_ratio: Spread | None = None
    memory: int | None = None  # bytes, above those of its start
    memory_ratio: float | None = None
    share: float | None = None  # of the floor
    sampling_share: float | None = None
    rounds: int = 0
    disturbed: int = 0  # of them
    scaled: float = 1.0  # it did this part of the work only; seconds and bytes are those of all of it
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """A case."""

    case: Case
    entries: Sequence[Entry]
    counts: Mapping[str, float]
    speed: Mapping[str, float]
    floor: Floor | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def reported(case: Case, results: Mapping[str, Result]) -> CaseReport:
    """The report of a case, outdo first."""
    speeds = [turn.figures for turn in results[MACHINE.name].turns] if MACHINE.name in results else []
    speed = {name: max(each[name] for each in speeds) for name in speeds[0]} if speeds else {}
    own = results.get(OWN[case.kind], Result())
    weights = own.about.get("weights")
    lowest = floor(case, Weights(**weights)) if weights else None
    entries = [
        _entry(name, result, own, lowest if speed else None, speed)
        for name, result in results.items()
        if name != MACHINE.name
    ]
    counts = own.turns[-1].figures if own.turns else {}
    return CaseReport(case=case, entries=entries, counts=counts, speed=speed, floor=lowest)


def _entry(name: str, result: Result, own: Result, lowest: Floor | None, speed: Mapping[str, float]) -> Entry:
    kept = [turn for (turn,) in _kept([(turn,) for turn in result.turns])]
    pairs = [] if result is own else _kept(list(zip(result.turns, own.turns, strict=False)))
    seconds, sampling = _of(kept, "seconds"), _of(kept, "sampling")
    ratio, sampling_ratio = _ratio(pairs, "seconds"), _ratio(pairs, "sampling")
    memory, least = _memory(result), _memory(own)
    return Entry(
        name=name,
        seconds=seconds,
        sampling=sampling,
        ratio=ratio,
        sampling_ratio=sampling_ratio,
        memory=memory,
        memory_ratio=memory / least if ratio and memory and least else None,
        share=_over(lowest.seconds(speed), seconds) if lowest else None,
        sampling_share=_over(lowest.sampling_seconds(speed), sampling) if lowest else None,
        rounds=len(result.turns),
        disturbed=sum(turn.disturbed for turn in result.turns),
        scaled=max((turn.times for turn in result.turns), default=1.0),
        failed=result.failed,
    )


def _of(turns: Sequence[Told], part: str) -> Spread | None:
    return Spread.of([getattr(turn, part) for turn in turns if getattr(turn, part)])


def _ratio(pairs: Sequence[tuple[Told, ...]], part: str) -> Spread | None:
    """Of those rounds in which both did that part."""
    both = [(getattr(his, part), getattr(our, part)) for his, our in pairs]
    return Spread.of([his / our for his, our in both if his and our])


def _over(floor: float, spread: Spread | None) -> float | None:
    return floor / spread.median if spread else None


def _memory(result: Result) -> int | None:
    """What the work needs at most; on an accelerator, there."""
    if not result.turns:
        return None
    there = max(turn.bytes for turn in result.turns)
    needed = there or result.memory
    return None if needed is None else int(needed * result.turns[0].times)


def _kept(rounds: Sequence[tuple[Told, ...]]) -> Sequence[tuple[Told, ...]]:
    """Those in which nobody else was at work, if there are enough of them."""
    quiet = [turns for turns in rounds if not any(turn.disturbed for turn in turns)]
    return quiet if len(quiet) >= ENOUGH else rounds


def table(report: CaseReport) -> Table:
    """A case for the terminal."""
    drawn = Table("", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))  # fits into 80 columns
    whole = "seconds" if report.case.kind == "scores" else "step"
    for column in (whole, "x", "floor", "sampling", "x", "floor", "MiB", "x"):
        drawn.add_column(column, justify="right", no_wrap=True)
    for entry in report.entries:
        if entry.failed:
            drawn.add_row(entry.name, "failed")
            continue
        drawn.add_row(
            entry.name,
            _spread(entry.seconds),
            _times(entry.ratio),
            _share(entry.share),
            _spread(entry.sampling),
            _times(entry.sampling_ratio),
            _share(entry.sampling_share),
            "" if entry.memory is None else f"{entry.memory / 2**20:,.0f}",
            "" if entry.memory_ratio is None else f"{entry.memory_ratio:.2f}",
        )
    return drawn


def counts_table(report: CaseReport) -> Table:
    """Counts for the terminal."""
    drawn = Table("counted", "")
    for name, number in report.counts.items():
        drawn.add_row(name, f"{number:,.0f}")
    return drawn


def remarks(report: CaseReport) -> list[str]:
    """What is to be known of a case's table, in sentences."""
    said: list[str] = []
    if report.speed:
        multiply, copy = report.speed["multiply"] / 1e9, report.speed["copy"] / 1e9
        said.append(f"this machine: {multiply:,.0f} GFLOP/s in matrix products, {copy:,.0f} GB/s in copies")
    if report.speed and report.floor is not None:
        whole, sampling = report.floor.seconds(report.speed), report.floor.sampling_seconds(report.speed)
        said.append(f"the floor: a step takes {whole:.3g} s at that speed, {sampling:.3g} s of them to sample")
    for entry in report.entries:
        if entry.failed:
            said.append(f"{entry.name} failed: {entry.failed}")
        if entry.disturbed:
            said.append(f"{entry.name}: others were at work during {entry.disturbed} of {entry.rounds} turns")
        if entry.scaled > 1:
            did = f"{entry.name} did 1/{entry.scaled:.0f} of the work, for want of memory"
            said.append(f"{did}: its figures are {entry.scaled:.0f} times what was measured")
    return said


LEGEND = (
    "seconds are medians ± half the range; x: a contender's over outdo's, round by round, so that above 1 outdo is "
    "ahead; floor: what the arithmetic alone would take, as a share of the time; MiB: at most, above those at the "
    "start; turns during which others used more than a tenth of the machine are left out where enough are quiet"
)


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.3g} ±{(spread.high - spread.low) / 2 / spread.median:.0%}"


def _times(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
