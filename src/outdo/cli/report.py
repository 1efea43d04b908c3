"""`outdo doctor`, `outdo glossary` and `outdo plot`: a run's numbers in sentences, in English, and as curves."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from outdo.cli.arguments import no_place, no_run
from outdo.observability import glossary
from outdo.observability.curves import plot
from outdo.observability.doctor import Finding, diagnose, from_the_start
from outdo.observability.page import read
from outdo.utils.errors import RunFolderError, UserError
from outdo.utils.text import mark_invisible

LEVELS: Mapping[str, str] = {"warning": "bold yellow", "note": "cyan", "good": "green"}
"""In the order in which they are told."""

TOPICS: Mapping[str, str] = {
    "outcome": "Did training help?",
    "data": "Did the questions teach anything?",
    "tokens": "Did the tokens move as they should?",
    "policy": "How is the policy doing?",
    "engine": "Are sampler and trainer the same policy?",
    "cost": "What does it cost?",
}


def run_doctor(run: Path, console: Console, *, as_json: bool = False) -> None:
    """Say what the rules find in a run, finished, alive or of another library: warnings, notes, then what went well.

    As JSON, an object on a line for each finding. Raises `UserError` or `RunFolderError` where no run can be read.
    """
    if wrong := no_run(run):
        raise UserError([wrong])
    left_out: list[str] = []
    lines, steps = _metrics(run, left_out.append)
    findings = diagnose(lines, recipe=read.table(run, "recipe.toml", left_out.append))
    for sentence in left_out:
        print(f"{run}: {sentence}", file=sys.stderr)
    if as_json:
        console.file.write("".join(json.dumps(asdict(finding)) + "\n" for finding in findings))
        return
    _say(console, Text(f"{run}: {steps} steps" if steps else f"{run}: metrics.jsonl has no step yet"))
    for level, colour in LEVELS.items():
        for finding in findings:
            if finding.level == level:
                _say(console, _told(finding, colour))
    if all(finding.level == "good" for finding in findings):
        _say(console, Text(_nothing_found(steps)))


def run_glossary(metric: str | None, console: Console) -> None:
    """Print what a metric is; without one, list all of them by topic. Raises `UserError` for an unknown metric."""
    if metric is None:
        for topic, entries in groupby(glossary.known(), key=lambda entry: entry.topic):
            _say(console, Text(TOPICS[topic], style="bold"))
            for each in entries:
                _say(console, Text.assemble((f"{each.name}  ", "cyan"), each.title))
        return
    found = glossary.entry(metric)
    if found is None:
        near = glossary.nearest(metric)
        hint = f"; did you mean {near}?" if near else "; `outdo glossary` names all of them"
        raise UserError([f"{metric}: outdo writes no such metric{hint}"])
    _say(
        console, Text.assemble((mark_invisible(found.title, spaces=False), "bold"), f"  ({mark_invisible(found.name)})")
    )
    for name, text in (("what", found.what), ("healthy", found.healthy), ("otherwise", found.otherwise)):
        _say(console, Text.assemble((f"{name}: ", "cyan"), text))


def run_plot(runs: Sequence[Path], out: Path, names: Sequence[str] | None, console: Console) -> None:
    """Draw the curves of one or two runs. Raises `UserError` with all that is wrong with runs, metrics and file."""
    mistakes = [wrong for wrong in (*map(no_run, runs), no_place(out)) if wrong]
    if len({run.resolve() for run in runs}) < len(runs):
        mistakes.append("plot: the same run is given twice")
    if mistakes:
        raise UserError(mistakes)
    left_out: list[str] = []
    lines = {str(run): _metrics(run, left_out.append)[0] for run in runs}
    for sentence in left_out:
        print(sentence, file=sys.stderr)
    try:
        plot(_short(lines), out, names=names or None)
    except OSError as error:
        raise RunFolderError(f"{out}: the picture was not written: {os.strerror(error.errno or 0)}") from error
    console.print(Text(f"the picture is {out}"), soft_wrap=True)


def _metrics(run: Path, left_out: read.Say) -> tuple[list[Mapping[str, Any]], int]:
    """The lines of a run, with the evaluation before its first step; and how many steps it has."""
    lines = read.metrics(run, left_out)
    return from_the_start(lines, read.table(run, "summary.json", left_out)), len(lines)


def _say(console: Console, text: Text) -> None:
    """Broken between words where a person reads; whole lines where a program does."""
    console.print(text, soft_wrap=not console.is_terminal)


def _told(finding: Finding, colour: str) -> Text:
    return Text.assemble((f"{finding.level}: ", colour), mark_invisible(finding.text, spaces=False))


def _nothing_found(steps: int) -> str:
    if steps < 5:
        return "nothing asks for a change; a rule looks at five steps or more, and so much is not there yet"
    return "nothing was found that asks for a change"


def _short(lines: Mapping[str, Any]) -> dict[str, Any]:
    """Runs by the name of their folder, where these differ."""
    short = {Path(name).resolve().name: value for name, value in lines.items()}
    return short if len(short) == len(lines) else dict(lines)
