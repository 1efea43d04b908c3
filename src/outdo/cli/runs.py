"""`outdo runs`: a table of the runs in a folder."""

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outdo.cli.arguments import AsJson
from outdo.cli.output import print_line, print_warning
from outdo.run.checkpoints.run_state import TAIL, run_state
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import UserError
from outdo.utils.outcome import EVALUATIONS, headline
from outdo.utils.run_names import RUNS
from outdo.utils.text import for_terminal

DEEPEST = 3
"""Folders between the given one and a run, that of the run included: `quickstart/seed-0/run-1`."""

RUN_FILES = ("environment.json", "metrics.jsonl")
"""A folder that holds one of them is a run. A recipe alone may be the user's own, beside the folders of its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What the table shows of a run."""

    run: str
    state: str  # running, finished, stopped, killed, failed, or recorded by another training loop
    error: str | None  # what a run that failed ended by
    step: int
    steps: int | None
    outcome: str  # the name of the number in `value`
    value: float | None  # the newest evaluation, or else the newest mean reward
    bytes: int
    seconds: float  # since its metrics were written


def command(
    folder: Annotated[Path, typer.Argument(help="the folder that holds them")] = RUNS,
    as_json: AsJson = False,
) -> None:
    """Print the runs in a folder, the newest first. Raises `UserError` if there is no such folder."""
    console = Console()
    if not folder.is_dir():
        raise UserError([f"{folder}: no such folder"])
    rows = sorted((_row(run, folder) for run in _runs(folder, DEEPEST)), key=lambda row: row.seconds)
    if as_json:
        fields = RunRow.__slots__
        console.file.write(json.dumps([{name: getattr(row, name) for name in fields} for row in rows]) + "\n")
    elif rows:
        console.print(_table(rows))
        for row in rows:
            if row.error is not None:
                print_line(console, f"{row.run}: failed: {' '.join(row.error.split())}")
    else:
        print_line(console, f"no run is in {folder}")


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).is_file() for name in RUN_FILES):
        yield folder
    elif depth:
        for inside in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            yield from _runs(inside, depth - 1)


def _row(run: Path, folder: Path) -> RunRow:
    state, lines = run_state(run), read_metrics(run / "metrics.jsonl", limits=TAIL, report=print_warning)
    outcome, value = _outcome(lines[::-1])
    written = max(path.stat().st_mtime for path in map(run.joinpath, RUN_FILES) if path.is_file())
    return RunRow(
        run=str(run if run == folder else run.relative_to(folder)),
        state=state.kind,
        error=state.error,
        step=state.step,
        steps=state.steps,
        outcome=outcome,
        value=value,
        bytes=sum(_sizes(run)),
        seconds=max(0.0, time.time() - written),
    )


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the bytes of each file in a folder, without links. A run that is running removes some meanwhile."""
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(inside, name))
                yield status.st_size if stat.S_ISREG(status.st_mode) else 0


def _outcome(newest_first: list[dict[str, Any]]) -> tuple[str, float | None]:
    """Return the newest held-out result, or else the newest mean reward, with its name."""
    for kind in EVALUATIONS:
        for line in newest_first:
            name = headline(f"eval/{kind}", line)
            if line.get(name) is not None:
                return name, line[name]
    return "reward", next((line["reward"] for line in newest_first if line.get("reward") is not None), None)


def _table(rows: list[RunRow]) -> Table:
    table = Table("run", "state", "step", "outcome", "size", "age")
    for row in rows:
        step = str(row.step) if row.steps is None else f"{row.step}/{row.steps}"
        is_share = row.outcome.removeprefix("eval/") in EVALUATIONS
        value = "" if row.value is None else f"{row.outcome} {row.value:{'.1%' if is_share else '.3f'}}"
        table.add_row(escape(for_terminal(row.run)), row.state, step, value, _size(row.bytes), _age(row.seconds))
    return table


def _size(count: int) -> str:
    scales: Mapping[str, float] = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
    unit, scale = next(((unit, scale) for unit, scale in scales.items() if count >= scale), ("B", 1.0))
    return f"{count / scale:.3g} {unit}" if count < 999.5 * scale else f"{count / scale:,.0f} {unit}"


def _age(seconds: float) -> str:
    units = {"days": 86400, "h": 3600, "min": 60}
    unit, length = next(((unit, length) for unit, length in units.items() if seconds >= 2 * length), ("s", 1))
    return f"{seconds / length:.0f} {unit}"
