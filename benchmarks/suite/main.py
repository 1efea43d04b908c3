"""`make bench`: compare outdo with other libraries and with the roofline, on the user's machine."""

import importlib.util
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.suite import baseline
from benchmarks.suite.cases import CASES, USUAL, Case, Kind
from benchmarks.suite.implementations import IMPLEMENTATIONS, OWN, Implementation
from benchmarks.suite.implementations import USUAL as USUAL_IMPLEMENTATIONS
from benchmarks.suite.picture import draw, draw_scale, refuse_other_endings
from benchmarks.suite.report import LEGEND, CaseReport, counts_table, remarks, report_of, table
from benchmarks.suite.rounds import WARM_UP, Say, run_case
from benchmarks.suite.scale import measure
from benchmarks.suite.setting import Setting
from outdo.cli.arguments import not_writable
from outdo.run.display import Display
from outdo.utils.errors import OutdoError, UserError, did_you_mean


class SlowerError(OutdoError):
    """A figure is worse than in the baseline."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of `make bench`."""

    cases: Sequence[str] = ()
    against: Sequence[str] = ()
    rounds: int = 5
    model: str | None = None
    threads: int | None = None
    device: str = "cpu"
    json: Path | None = None
    plot: Path | None = None
    accept: Path | None = None
    gate: Path | None = None


def run_bench(arguments: Arguments, display: Display) -> None:
    """Time the cases and print the figures.

    Raises `UserError` with every mistake in the arguments, and `SlowerError` if a figure is worse than in the baseline.
    """
    accepted = _checked(arguments)
    reports: list[CaseReport] = []
    for name in arguments.cases or USUAL:
        report = _run(CASES[name], arguments, display)
        reports.append(report)
        display.say(f"{name}: {report.case.about}")
        display.console.print((counts_table if report.case.kind == "counts" else table)(report))
        for remark in remarks(report):
            display.say(remark)
    if any(report.case.kind != "counts" for report in reports):
        display.say(LEGEND)
    found = baseline.figures(reports)
    _write(arguments, reports, found, display)
    if worse := baseline.worse(accepted, found):
        hint = f"to accept these figures: make bench ARGS='--accept {arguments.gate}'"
        raise SlowerError("\n".join([*worse, hint]))


def _run(case: Case, arguments: Arguments, display: Display) -> CaseReport:
    threads = arguments.threads or os.cpu_count() or 1
    counted = case.kind == "counts"
    results = run_case(
        Setting(case=case, threads=threads, device=arguments.device, model=arguments.model),
        _implementations(case, arguments.against),
        rounds=1 if counted else arguments.rounds,
        warm_up=0 if counted else WARM_UP,
        measure=not counted,
        say=_progress(display),
    )
    if failed := results[OWN[case.kind]].failed:
        raise OutdoError(f"{case.name}: outdo itself failed: {failed}")
    return report_of(case, results)


def run_scale(arguments: Arguments, display: Display) -> None:
    """Measure how the costs of a step grow, and write them to --json and --plot. Takes minutes."""
    _checked(arguments)
    found = measure(threads=arguments.threads or os.cpu_count() or 1, say=display.say)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        draw_scale(found.series, found.groups, arguments.plot)
        display.say(f"the picture is {arguments.plot}")


def run_list(arguments: Arguments, display: Display) -> None:
    """List the cases and the implementations."""
    cases = Table("case", "what is timed")
    for case in CASES.values():
        cases.add_row(case.name, case.about + ("" if case.name in USUAL else "; runs only if it is named"))
    implementations = Table("implementation", "what it is", "kind")
    for each in IMPLEMENTATIONS.values():
        implementations.add_row(each.name, each.about, each.kind if each.part == "step" else each.part)
    display.console.print(cases, implementations)


def _checked(arguments: Arguments) -> Mapping[str, Any]:
    """Check the arguments; return the baseline of --gate. Raises `UserError` with every mistake."""
    mistakes = [
        *_unknown("case", arguments.cases, CASES),
        *_unknown("implementation", arguments.against, IMPLEMENTATIONS),
    ]
    lacking = {
        IMPLEMENTATIONS[name].needs
        for name in arguments.against or _usual_implementations(arguments)
        if name in IMPLEMENTATIONS
    } - {""}
    mistakes += [
        f'bench: {package} is not installed: pip install "outdo[peers]", or choose others with --against'
        for package in sorted(lacking)
        if importlib.util.find_spec(package) is None
    ]
    for path in (arguments.json, arguments.accept, arguments.plot):
        problem = not_writable(path) if path else None
        mistakes += [problem] if problem else []
    accepted: Mapping[str, Any] = {}
    if arguments.plot is not None:
        try:
            refuse_other_endings(arguments.plot)
        except UserError as error:
            mistakes += error.problems
    if arguments.gate is not None:
        try:
            accepted = baseline.read(arguments.gate)
        except UserError as error:
            mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return accepted


def _usual_implementations(arguments: Arguments) -> set[str]:
    kinds: set[Kind] = {CASES[name].kind for name in arguments.cases or USUAL if name in CASES}
    return {name for kind in kinds for name in USUAL_IMPLEMENTATIONS[kind]}


def _unknown(what: str, names: Sequence[str], known: Iterable[str]) -> list[str]:
    hint = "; `make bench ARGS=--list` shows all of them"
    return [
        f"bench: there is no {what} {name!r}{did_you_mean(name, [*known]) or hint}"
        for name in names
        if name not in set(known)
    ]


def _implementations(case: Case, against: Sequence[str]) -> list[Implementation]:
    """Return outdo first, then the chosen implementations that can run such a case."""
    named = against or USUAL_IMPLEMENTATIONS[case.kind]
    others = [name for name in named if IMPLEMENTATIONS[name].can_do(case.kind) and name != OWN[case.kind]]
    return [IMPLEMENTATIONS[name] for name in (OWN[case.kind], *others)]


def _progress(display: Display) -> Say:
    """Return what prints the progress: on a terminal only."""
    return display.say if display.live else (lambda line: None)


def _write(arguments: Arguments, reports: Sequence[CaseReport], found: Mapping[str, Any], display: Display) -> None:
    if arguments.json is not None:
        whole = {"versions": found["versions"], "cases": [report.as_dict() for report in reports]}
        arguments.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        draw(reports, arguments.plot)
        display.say(f"the picture is {arguments.plot}")
    if arguments.accept is not None:
        baseline.accept(arguments.accept, found)
        display.say(f"the baseline is {arguments.accept}")
