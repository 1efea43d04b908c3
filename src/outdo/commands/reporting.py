"""`outdo doctor`, `outdo glossary` and `outdo plot`: a run's numbers in sentences, in English, and as curves."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from outdo import glossary
from outdo.doctor import Finding, diagnose, from_the_start
from outdo.errors import Mistakes, RunFolderError
from outdo.folder import read_metrics
from outdo.inspector.curves import plot
from outdo.marks import visible

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

    As JSON, an object on a line for each finding. Raises `Mistakes` or `RunFolderError` where no run can be read.
    """
    metrics = _metrics(run)
    lines = from_the_start(metrics, _table(run / "summary.json", json.loads))
    findings = diagnose(lines, recipe=_table(run / "recipe.toml", tomllib.loads))
    if as_json:
        console.file.write("".join(json.dumps(asdict(finding)) + "\n" for finding in findings))
        return
    console.print(Text(f"{run}: {len(metrics)} steps"))
    for level, colour in LEVELS.items():
        for finding in findings:
            if finding.level == level:
                console.print(_told(finding, colour))
    if all(finding.level == "good" for finding in findings):
        console.print(Text(_nothing_found(len(metrics))))


def run_glossary(metric: str | None, console: Console) -> None:
    """Say what a metric is; without one, name all of them by topic. Raises `Mistakes` where there is no such metric."""
    if metric is None:
        for topic, entries in groupby(glossary.known(), key=lambda entry: entry.topic):
            console.print(Text(TOPICS[topic], style="bold"))
            for each in entries:
                console.print(Text.assemble((f"{each.name}  ", "cyan"), each.title))
        return
    found = glossary.entry(metric)
    if found is None:
        near = glossary.nearest(metric)
        hint = f"; did you mean {near}?" if near else "; `outdo glossary` names all of them"
        raise Mistakes([f"{metric}: outdo writes no such metric{hint}"])
    console.print(Text.assemble((found.title, "bold"), f"  ({visible(found.name)})"))
    for name, text in (("what", found.what), ("healthy", found.healthy), ("otherwise", found.otherwise)):
        console.print(Text.assemble((f"{name}: ", "cyan"), text))


def run_plot(runs: Sequence[Path], out: Path, names: Sequence[str] | None, console: Console) -> None:
    """Draw the curves of one or two runs. Raises `Mistakes` with all that is wrong with runs, metrics and file."""
    mistakes: list[str] = []
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        try:
            lines[str(run)] = from_the_start(_metrics(run), _table(run / "summary.json", json.loads))
        except Mistakes as error:
            mistakes += error.mistakes
    if mistakes:
        raise Mistakes(mistakes)
    try:
        plot(_short(lines), out, names=names or None)
    except OSError as error:
        raise RunFolderError(f"{out}: the picture was not written: {os.strerror(error.errno or 0)}") from error
    console.print(Text(f"the picture is {out}"), soft_wrap=True)


def _metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run that have a step."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise Mistakes([f"{run}: no run is there, or no step of it is done (it has no metrics.jsonl)"])
    return [line for line in read_metrics(path) if isinstance(line.get("step"), int)]


def _table(path: Path, parse: Callable[[str], Any]) -> Mapping[str, Any]:
    """What a file holds that not every run has; nothing where there is none. Raises `RunFolderError` if damaged."""
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from error
    return found if isinstance(found, Mapping) else {}


def _told(finding: Finding, colour: str) -> Text:
    return Text.assemble((f"{finding.level}: ", colour), visible(finding.text, spaces=False))


def _nothing_found(steps: int) -> str:
    if steps < 5:
        return "nothing asks for a change; a rule looks at five steps or more, and so much is not there yet"
    return "nothing was found that asks for a change"


def _short(lines: Mapping[str, Any]) -> dict[str, Any]:
    """Runs by the name of their folder, where these differ."""
    short = {Path(name).resolve().name: value for name, value in lines.items()}
    return short if len(short) == len(lines) else dict(lines)
