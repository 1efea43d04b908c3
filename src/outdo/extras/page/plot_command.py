"""`outdo plot`: the curves of one run or two."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.cli.arguments import no_run, not_writable
from outdo.cli.output import metrics_of, print_line, print_warning
from outdo.extras.page.curves import plot
from outdo.utils.errors import UserError


def command(
    runs: Annotated[list[Path], typer.Argument(help="a run folder, or two to compare", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="a .png or .svg file")] = Path("curves.png"),
    metric: Annotated[
        list[str] | None, typer.Option(help="a metric to draw; may be given several times; unset: the usual ones")
    ] = None,
) -> None:
    """Draw the curves of one or two runs. Raises `UserError` with every fault of the runs, the metrics and the file."""
    mistakes = [problem for problem in (*map(no_run, runs), not_writable(out)) if problem]
    if len({run.resolve() for run in runs}) < len(runs):
        mistakes.append("plot: the same run is given twice")
    if mistakes:
        raise UserError(mistakes)
    lines = {str(run): metrics_of(run, partial(_warn, run))[0] for run in runs}
    plot(_short_names(lines), out, names=metric or None)
    print_line(Console(), f"the picture is {out}")


def _warn(run: Path, sentence: str) -> None:
    print_warning(f"{run}: {sentence}")


def _short_names(lines: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runs by the names of their folders, if these differ."""
    short = {Path(name).resolve().name: value for name, value in lines.items()}
    return short if len(short) == len(lines) else dict(lines)
