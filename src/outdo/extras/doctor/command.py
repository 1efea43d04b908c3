"""`outdo doctor`: findings about one or several runs, as sentences."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outdo.cli.arguments import no_run
from outdo.cli.output import metrics_of, print_text, print_warning
from outdo.cli.packages import run_packages
from outdo.extras.doctor import LEVELS, Finding, Level, diagnose
from outdo.extras.doctor.resumes import changed_bits, failed
from outdo.run.checkpoints.run_state import run_state
from outdo.run.folder import run_files
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import UserError
from outdo.utils.text import counted, mark_invisible

COLOURS: Mapping[Level, str] = {"warning": "bold yellow", "note": "cyan", "good": "green"}


def command(
    runs: Annotated[list[Path] | None, typer.Argument(help="run folders", show_default=False)] = None,
    packages: Annotated[bool, typer.Option("--packages", help="examine the installed packages instead")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="exit with status 1 if there is a warning")] = False,
) -> int:
    """Diagnose runs, or the installed packages."""
    if packages == bool(runs):
        raise UserError(["doctor: expected run folders, or --packages"])
    if packages:
        if strict:
            raise UserError(["--strict: has no effect with --packages, whose status is 1 if packages do not fit"])
        return run_packages(Console(), as_json=as_json)
    return run_doctor(runs or [], Console(), as_json=as_json, strict=strict)


def run_doctor(runs: Sequence[Path], console: Console, *, as_json: bool = False, strict: bool = False) -> int:
    """Print the findings about each run, causes first; return the exit status: 1 if `strict` and there is a warning.

    With `as_json` every finding is a JSON object on a line, with its run. A run may be finished, still alive, or of
    another library. Raises `UserError` with every folder without a run, and with every run without a finished step, or
    `RunFolderError` if a file cannot be read.
    """
    if problems := [problem for run in runs if (problem := no_run(run))]:
        raise UserError(problems)
    diagnosed = {run: _diagnose(run) for run in runs}
    if problems := [_without_step(run) for run, (_, steps) in diagnosed.items() if not steps]:
        raise UserError(problems)
    warnings = 0
    for run, (findings, steps) in diagnosed.items():
        warnings += sum(finding.level == "warning" for finding in findings)
        if as_json:
            lines = ({"run": str(run), **asdict(finding)} for finding in findings)
            console.file.write("".join(json.dumps(line) + "\n" for line in lines))
        else:
            _print(run, steps, findings, console)
    return int(strict and warnings > 0)


def _diagnose(run: Path) -> tuple[list[Finding], int]:
    """Return the findings about a run and the number of its steps; print to stderr what cannot be read."""
    left_out: list[str] = []
    lines, steps = metrics_of(run, left_out.append)
    findings = [*failed(run_state(run))]
    findings += diagnose(lines, recipe=run_files.table(run, "recipe.toml", left_out.append))
    findings += changed_bits(read_metrics(run / "history.jsonl", report=print_warning))
    for sentence in left_out:
        print_warning(f"{run}: {sentence}")
    return findings, steps


def _without_step(run: Path) -> str:
    """Return that nothing can be said about a run, and what became of it."""
    state = run_state(run)
    why = f": {' '.join(state.error.split())}" if state.error else ""
    return f"{run}: nothing to diagnose: no step is finished ({state}{why})"


def _print(run: Path, steps: int, findings: Sequence[Finding], console: Console) -> None:
    """Print the findings about a run; beneath a cause its symptoms, indented."""
    print_text(console, Text(f"{run}: {counted(steps, 'step')}: {_counts(findings, steps)}"))
    for finding in findings:
        words = mark_invisible(
            f"{finding.steps}: {' '.join(filter(None, (finding.text, finding.advice)))}", spaces=False
        )
        if finding.cause:
            print_text(console, Text(f"  symptom: {words}"))
        else:
            print_text(console, Text.assemble((f"{finding.level}: ", COLOURS[finding.level]), words))


def _counts(findings: Sequence[Finding], steps: int) -> str:
    """Return `2 warnings, 1 note`, without symptoms; or that no problem was found."""
    counts = Counter(finding.level for finding in findings if not finding.cause)
    named = [counted(counts[level], level) for level in LEVELS[:2] if counts[level]]
    few = " (most rules need five steps or more)" if steps < 5 else ""
    return ", ".join(named) or f"no problem was found{few}"
