"""`outdo doctor`: findings about a run, as sentences."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from outdo.cli.arguments import no_run
from outdo.cli.output import metrics_of, print_text, print_warning
from outdo.observability.doctor import Finding, diagnose
from outdo.observability.page import read
from outdo.utils.errors import UserError
from outdo.utils.text import mark_invisible

LEVELS: Mapping[str, str] = {"warning": "bold yellow", "note": "cyan", "good": "green"}
"""The levels of findings in the order in which they are printed, with their colours."""


def run_doctor(run: Path, console: Console, *, as_json: bool = False) -> None:
    """Print the findings about a run: warnings, then notes, then what went well; as JSON, one object per line.

    The run may be finished, still alive, or of another library. Raises `UserError` or `RunFolderError` if there is no
    run that can be read.
    """
    if problem := no_run(run):
        raise UserError([problem])
    left_out: list[str] = []
    lines, steps = metrics_of(run, left_out.append)
    findings = diagnose(lines, recipe=read.table(run, "recipe.toml", left_out.append))
    for sentence in left_out:
        print_warning(f"{run}: {sentence}")
    if as_json:
        console.file.write("".join(json.dumps(asdict(finding)) + "\n" for finding in findings))
        return
    print_text(console, Text(f"{run}: {steps} steps" if steps else f"{run}: metrics.jsonl has no step yet"))
    for level, colour in LEVELS.items():
        for finding in findings:
            if finding.level == level:
                print_text(console, _line(finding, colour))
    if all(finding.level == "good" for finding in findings):
        print_text(console, Text(_no_problem(steps)))


def _line(finding: Finding, colour: str) -> Text:
    return Text.assemble((f"{finding.level}: ", colour), mark_invisible(finding.text, spaces=False))


def _no_problem(steps: int) -> str:
    if steps < 5:
        return "no problem was found; most rules need five steps or more"
    return "no problem was found"
