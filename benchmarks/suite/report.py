"""Report the rounds: medians with their spread, ratios round by round, and shares of the machine's roofline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.suite.cases import Case
from benchmarks.suite.implementations import MACHINE, OWN
from benchmarks.suite.roofline import Roofline, Weights, roofline
from benchmarks.suite.rounds import Result, TimedTurn

ENOUGH = 2
"""If this many rounds are undisturbed, the disturbed ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and range over some rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread of values; None if there are none."""
        return cls(median=median(values), low=min(values), high=max(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An implementation in a case. Ratios are its seconds or bytes over those of outdo, round by round; outdo has none.

    Above 1, outdo is faster or needs less.
    """

    name: str
    seconds: Spread | None = None
    sampling: Spread | None = None
    ratio: Spread | None = None
    sampling_ratio: Spread | None = None
    memory: int | None = None  # bytes, above those of its start
    memory_ratio: float | None = None
    share: float | None = None  # of the roofline
    sampling_share: float | None = None
    rounds: int = 0
    disturbed: int = 0  # of them
    scaled: float = 1.0  # it did only 1/scaled of the work; seconds and bytes are scaled up to all of it
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """The figures of a case."""

    case: Case
    entries: Sequence[Entry]
    counts: Mapping[str, float]
    speed: Mapping[str, float]
    roofline: Roofline | None
    processor: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)


def report_of(case: Case, results: Mapping[str, Result]) -> CaseReport:
    """Make the report of a case, outdo first."""
    measured = results.get(MACHINE.name, Result())
    speeds = [turn.figures for turn in measured.turns]
    speed = {name: max(each[name] for each in speeds) for name in speeds[0]} if speeds else {}
    own = results.get(OWN[case.kind], Result())
    weights = own.about.get("weights")
    bound = roofline(case, Weights(**weights)) if weights else None
    entries = [
        _entry(name, result, own, bound if speed else None, speed)
        for name, result in results.items()
        if name != MACHINE.name
    ]
    counts = own.turns[-1].figures if own.turns else {}
    named = measured.about.get("processor", "")
    return CaseReport(case=case, entries=entries, counts=counts, speed=speed, roofline=bound, processor=named)


def _entry(name: str, result: Result, own: Result, bound: Roofline | None, speed: Mapping[str, float]) -> Entry:
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
        share=_over(bound.seconds(speed), seconds) if bound else None,
        sampling_share=_over(bound.sampling_seconds(speed), sampling) if bound else None,
        rounds=len(result.turns),
        disturbed=sum(turn.disturbed for turn in result.turns),
        scaled=max((turn.times for turn in result.turns), default=1.0),
        failed=result.failed,
    )


def _of(turns: Sequence[TimedTurn], part: str) -> Spread | None:
    return Spread.of([getattr(turn, part) for turn in turns if getattr(turn, part)])


def _ratio(pairs: Sequence[tuple[TimedTurn, ...]], part: str) -> Spread | None:
    """Return the ratios of the rounds in which both did that part."""
    both = [(getattr(other, part), getattr(own, part)) for other, own in pairs]
    return Spread.of([other / own for other, own in both if other and own])


def _over(roofline: float, spread: Spread | None) -> float | None:
    return roofline / spread.median if spread else None


def _memory(result: Result) -> int | None:
    """Return the most memory that the work needed; on an accelerator, the memory of the accelerator."""
    if not result.turns:
        return None
    accelerator = max(turn.bytes for turn in result.turns)
    needed = accelerator or result.memory
    return None if needed is None else int(needed * result.turns[0].times)


def _kept(rounds: Sequence[tuple[TimedTurn, ...]]) -> Sequence[tuple[TimedTurn, ...]]:
    """Return the undisturbed rounds if there are enough of them, else all."""
    quiet = [turns for turns in rounds if not any(turn.disturbed for turn in turns)]
    return quiet if len(quiet) >= ENOUGH else rounds


def table(report: CaseReport) -> Table:
    """Make the table of a case for the terminal."""
    printed = Table("", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))  # fits into 80 columns
    whole = "seconds" if report.case.kind == "scores" else "step"
    for column in (whole, "x", "roofline", "sampling", "x", "roofline", "MiB", "x"):
        printed.add_column(column, justify="right", no_wrap=True)
    for entry in report.entries:
        if entry.failed:
            printed.add_row(entry.name, "failed")
            continue
        printed.add_row(
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
    return printed


def counts_table(report: CaseReport) -> Table:
    """Make the table of the counts for the terminal."""
    printed = Table("counted", "")
    for name, number in report.counts.items():
        printed.add_row(name, f"{number:,.0f}")
    return printed


def remarks(report: CaseReport) -> list[str]:
    """Return sentences that explain the table of a case."""
    sentences = list(_speeds(report))
    for entry in report.entries:
        if entry.failed:
            sentences.append(f"{entry.name} failed: {entry.failed}")
        if entry.disturbed:
            sentences.append(f"{entry.name}: other processes were busy in {entry.disturbed} of {entry.rounds} turns")
        if entry.scaled > 1:
            done = f"{entry.name} did 1/{entry.scaled:.0f} of the work because memory is short"
            sentences.append(f"{done}: its figures are {entry.scaled:.0f} times what was measured")
    return sentences


def _speeds(report: CaseReport) -> Iterator[str]:
    """Yield how fast the machine is, what it would take at that speed, and tokens a second of sampling alone."""
    if report.speed:
        multiply, copy = report.speed["multiply"] / 1e9, report.speed["copy"] / 1e9
        yield (
            f"this machine ({report.processor}): {multiply:,.0f} GFLOP/s in matrix products, {copy:,.0f} GB/s in copies"
        )
    sampling_alone = report.case.kind == "sampling"
    if report.speed and report.roofline is not None:
        whole, sampling = report.roofline.seconds(report.speed), report.roofline.sampling_seconds(report.speed)
        step = "" if sampling_alone else f"a step takes {whole:.3g} s, "
        yield f"roofline: at that speed {step}sampling alone takes {sampling:.3g} s"
    if sampling_alone:
        timed = [(entry.name, entry.sampling.median) for entry in report.entries if entry.sampling]
        yield "tokens a second: " + ", ".join(f"{name} {report.case.sampled / seconds:,.0f}" for name, seconds in timed)


LEGEND = (
    "seconds: median ± half the range; x: time or memory over that of outdo, per round (above 1: outdo is better); "
    "roofline: the time of the arithmetic alone, as a share of the time; MiB: peak memory above that at the start; "
    "turns during which other processes used more than a tenth of the machine are left out if enough are undisturbed"
)


def _spread(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.3g} ±{(spread.high - spread.low) / 2 / spread.median:.0%}"


def _times(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
