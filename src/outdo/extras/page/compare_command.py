"""`outdo compare`: settings that differ and last metrics side by side; or whether metrics are within given bands."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outdo.cli.arguments import AsJson, no_run
from outdo.cli.output import print_line, print_warning
from outdo.config.resume import flatten
from outdo.extras.page.bands import Band, read_bands
from outdo.run.folder import run_files
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.errors import UserError
from outdo.utils.text import counted, for_terminal

SHOWN = (
    *("step", "reward", "reward_group_std", "right", "frac_reward_zero_std", "frac_zero_advantage"),
    *("kl", "entropy", "grad_norm"),
    *("completions/mean_length", "completions/clipped_ratio", "seconds", "tokens_per_second"),
)
"""The metrics of training that are compared, besides those of the last evaluation."""

Columns = Mapping[str, Mapping[str, Any]]


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="two or more run folders; one is enough with --band", show_default=False)
    ],
    band: Annotated[
        Path | None,
        typer.Option(help="instead: are the metrics within the bands of this TOML file? exit status 1 if not"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what differs between runs, or whether they are within bands. Raises `UserError` with every mistake."""
    console = Console()
    _check(runs, at_least=2 if band is None else 1)
    if band is not None:
        raise typer.Exit(0 if _are_within(runs, read_bands(band), console, as_json) else 1)
    settings = {str(run): dict(flatten(run_files.table(run, "recipe.toml", print_warning))) for run in runs}
    metrics = {str(run): _last_metrics(run) for run in runs}
    differing = _differing(settings)
    measured = list(dict.fromkeys(name for of_run in metrics.values() for name in of_run))
    if as_json:
        tables = {"settings": _side_by_side(settings, differing), "metrics": _side_by_side(metrics, measured)}
        console.file.write(json.dumps({"runs": list(settings), **tables}) + "\n")
        return
    _print_settings(settings, differing, console)
    console.print(_table("last metrics", metrics, measured))


def _check(runs: Sequence[Path], at_least: int) -> None:
    problems = [problem for run in runs if (problem := no_run(run))]
    if len(set(runs)) < max(at_least, len(runs)):
        problems.append(f"compare: give {'two runs or more' if at_least > 1 else 'a run'}, each once")
    if problems:
        raise UserError(problems)


def _are_within(runs: Sequence[Path], bands: Sequence[Band], console: Console, as_json: bool) -> bool:
    """Print the values of each band's metric; return whether all are inside."""
    columns = {str(run): _metrics_from_step_0(run) for run in runs}
    values = [[band.value(metrics) for metrics in columns.values()] for band in bands]
    outside = sum(not band.holds(value) for band, row in zip(bands, values, strict=True) for value in row)
    if as_json:
        rows = [band._asdict() | {"values": row} for band, row in zip(bands, values, strict=True)]
        console.file.write(json.dumps({"runs": list(columns), "bands": rows, "outside": outside}) + "\n")
        return not outside
    table = Table("metric", "steps", "band", *(escape(for_terminal(run)) for run in columns))
    for band, row in zip(bands, values, strict=True):
        cells = (_judged(band, value) for value in row)
        table.add_row(escape(for_terminal(band.metric)), band.steps, f"{band.low:g} to {band.high:g}", *cells)
    console.print(table)
    print_line(console, f"outside: {outside} of {counted(len(bands) * len(columns), 'value')}")
    return not outside


def _metrics_from_step_0(run: Path) -> list[Mapping[str, Any]]:
    lines = read_metrics(run / "metrics.jsonl", report=print_warning)
    return run_files.with_initial_evaluation(lines, run_files.table(run, "summary.json", print_warning))


def _judged(band: Band, value: float | None) -> str:
    if value is None:
        return "missing"
    return f"{value:.4g}" if band.holds(value) else f"{value:.4g} outside"


def _differing(settings: Columns) -> list[str]:
    """Return the settings that are not the same in all runs that have a recipe, apart from the name of the run."""
    known = [of_run for of_run in settings.values() if of_run]
    names = sorted({name for of_run in known for name in of_run} - {"run"})
    return [name for name in names if len({of_run.get(name) for of_run in known}) > 1]


def _print_settings(settings: Columns, differing: Sequence[str], console: Console) -> None:
    unknown = [run for run, of_run in settings.items() if not of_run]
    for run in unknown:
        print_line(console, f"{run}: its settings are not known, because it has no recipe.toml")
    if differing:
        console.print(_table("settings that differ", settings, differing))
    elif not unknown:
        print_line(console, "all settings are equal")


def _side_by_side(columns: Columns, rows: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each row in the order of the runs; null where a run has none."""
    return {name: [of_run.get(name) for of_run in columns.values()] for name in rows}


def _last_metrics(run: Path) -> dict[str, float]:
    """Return the last value of each compared metric of training, and the numbers of the last evaluation.

    Of an evaluation, the ends of the intervals are left out.
    """
    last: dict[str, Any] = {}
    for line in read_metrics(run / "metrics.jsonl", report=print_warning):
        known = {name: value for name, value in line.items() if value is not None}
        if any(name.startswith("eval/") for name in known):  # it may lack what an earlier one has
            last = {name: value for name, value in last.items() if not name.startswith("eval/")}
        last |= known
    evaluated = sorted(name for name in last if name.startswith("eval/") and not name.endswith(("_low", "_high")))
    return {name: last[name] for name in (*SHOWN, *evaluated) if name in last}


def _table(title: str, columns: Columns, rows: Sequence[str]) -> Table:
    table = Table(title, *(escape(for_terminal(name)) for name in columns), title_justify="left")
    for name in rows:
        cells = (_cell(of_run.get(name)) for of_run in columns.values())
        table.add_row(escape(for_terminal(name)), *cells)
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else escape(for_terminal(str(value)))
