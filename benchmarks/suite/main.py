"""`make bench`: outdo beside its peers and beside the machine, on the user's own."""

import importlib.util
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.suite import gate
from benchmarks.suite.cases import CASES, USUAL, Case, Kind
from benchmarks.suite.contenders import CONTENDERS, OWN, Contender
from benchmarks.suite.contenders import USUAL as USUAL_CONTENDERS
from benchmarks.suite.picture import draw, draw_scale, refuse_other_endings
from benchmarks.suite.report import LEGEND, CaseReport, counts_table, remarks, reported, table
from benchmarks.suite.rounds import run_case
from benchmarks.suite.scale import measure
from benchmarks.suite.setting import Setting
from outdo.cli.arguments import no_place
from outdo.trainer.display import Display
from outdo.utils.errors import OutdoError, UserError, did_you_mean


class SlowerError(OutdoError):
    """Something became worse than what was accepted."""


@dataclass(frozen=True, slots=True)
class Asked:
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


def run_bench(asked: Asked, display: Display) -> None:
    """Time the cases and say what came out.

    Raises `UserError` with all that is wrong with the arguments, and `SlowerError` when the gate does not open.
    """
    accepted = _checked(asked)
    reports: list[CaseReport] = []
    for name in asked.cases or USUAL:
        case = CASES[name]
        contenders = _contenders(case, asked.against)
        setting = Setting(
            case=case, threads=asked.threads or os.cpu_count() or 1, device=asked.device, model=asked.model
        )
        counted = case.kind == "counts"
        how: dict[str, Any] = {"rounds": 1, "warm_up": 0, "measure": False} if counted else {"rounds": asked.rounds}
        results = run_case(setting, contenders, say=_quiet(display), **how)
        report = reported(case, results)
        if failed := results[OWN[case.kind]].failed:
            raise OutdoError(f"{name}: outdo itself failed: {failed}")
        reports.append(report)
        display.say(f"{name}: {case.about}")
        display.console.print((counts_table if counted else table)(report))
        for remark in remarks(report):
            display.say(remark)
    if any(report.case.kind != "counts" for report in reports):
        display.say(LEGEND)
    found = gate.figures(reports)
    _write(asked, reports, found, display)
    if said := gate.worse(accepted, found):
        raise SlowerError("\n".join([*said, f"if that is as it should be: make bench ARGS='--accept {asked.gate}'"]))


def run_scale(asked: Asked, display: Display) -> None:
    """Measure how the costs of a step grow: to --json, and as small panels to --plot. Takes minutes."""
    _checked(asked)
    found = measure(threads=asked.threads or os.cpu_count() or 1, say=display.say)
    if asked.json is not None:
        asked.json.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    if asked.plot is not None:
        draw_scale(found.series, found.groups, asked.plot)
        display.say(f"the picture is {asked.plot}")


def run_list(asked: Asked, display: Display) -> None:
    """Name the cases, and who can take part."""
    cases = Table("case", "what is timed")
    for case in CASES.values():
        cases.add_row(case.name, case.about + ("" if case.name in USUAL else "; only when it is named"))
    contenders = Table("contender", "what it is", "does")
    for each in CONTENDERS.values():
        contenders.add_row(each.name, each.about, each.kind if each.part == "step" else each.part)
    display.console.print(cases, contenders)


def _checked(asked: Asked) -> Mapping[str, Any]:
    """What was accepted, for the gate. Raises `UserError`."""
    mistakes = [*_unknown("case", asked.cases, CASES), *_unknown("contender", asked.against, CONTENDERS)]
    lacking = {CONTENDERS[name].needs for name in asked.against or _usual_peers(asked) if name in CONTENDERS} - {""}
    mistakes += [
        f'bench: {package} is not installed: pip install "outdo[peers]", or name others with --against'
        for package in sorted(lacking)
        if importlib.util.find_spec(package) is None
    ]
    for path in (asked.json, asked.accept, asked.plot):
        mistakes += [wrong for wrong in [no_place(path) if path else None] if wrong]
    accepted: Mapping[str, Any] = {}
    if asked.plot is not None:
        try:
            refuse_other_endings(asked.plot)
        except UserError as error:
            mistakes += error.problems
    if asked.gate is not None:
        try:
            accepted = gate.read(asked.gate)
        except UserError as error:
            mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return accepted


def _usual_peers(asked: Asked) -> set[str]:
    kinds: set[Kind] = {CASES[name].kind for name in asked.cases or USUAL if name in CASES}
    return {name for kind in kinds for name in USUAL_CONTENDERS[kind]}


def _unknown(what: str, names: Sequence[str], known: Iterable[str]) -> list[str]:
    hint = "; `make bench ARGS=--list` names all of them"
    return [
        f"bench: there is no {what} {name!r}{did_you_mean(name, [*known]) or hint}"
        for name in names
        if name not in set(known)
    ]


def _contenders(case: Case, against: Sequence[str]) -> list[Contender]:
    """outdo first, then those asked for that can do such a case."""
    named = against or USUAL_CONTENDERS[case.kind]
    able = [name for name in named if CONTENDERS[name].kind == case.kind and name != OWN[case.kind]]
    return [CONTENDERS[name] for name in (OWN[case.kind], *able)]


def _quiet(display: Display) -> Any:
    """Who is at work is told to a person who waits, and to nobody else."""
    return display.say if display.live else (lambda line: None)


def _write(asked: Asked, reports: Sequence[CaseReport], found: Mapping[str, Any], display: Display) -> None:
    if asked.json is not None:
        whole = {"versions": found["versions"], "cases": [report.as_dict() for report in reports]}
        asked.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    if asked.plot is not None:
        draw(reports, asked.plot)
        display.say(f"the picture is {asked.plot}")
    if asked.accept is not None:
        gate.accept(asked.accept, found)
        display.say(f"accepted: {asked.accept}")
