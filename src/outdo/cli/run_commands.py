"""The commands that show runs, with their arguments; `outdo.cli.main` adds them to the command line."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.arguments import AsJson, RunFolder
from outdo.trainer.display import Display
from outdo.utils.errors import UserError

app = typer.Typer()


@app.command()
def inspect(
    runs: Annotated[list[Path], typer.Argument(help="a run folder, or up to ten to compare", show_default=False)],
    *,
    out: Annotated[Path | None, typer.Option(help="the file to write; unset: report.html in the run folder")] = None,
    step: Annotated[
        list[int] | None,
        typer.Option(help="a step whose tokens are shown; may be given several times; unset: the most telling steps"),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(help="compare two evaluations and checkpoints of the run: start step_80, or step_40 step_80"),
    ] = None,
    serve: Annotated[
        bool | None, typer.Option("--serve/--file", help="serve a live page, or write a file; unset: live if it runs")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the server; 0: any free one")] = 0,
    terminal: Annotated[bool, typer.Option("--terminal", help="print one group of one step in the terminal")] = False,
    group: Annotated[int | None, typer.Option(min=0, help="the group that --terminal prints")] = None,
    by: Annotated[
        str | None, typer.Option(help="what colours its tokens: moved, ratio, advantage, ...", show_default=False)
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="groups of each step on the page; unset: as many as fit")
    ] = None,
) -> None:
    """Show what was trained: every token, and whether its probability moved as intended."""
    from outdo.cli.inspect import InspectArguments, run_inspect

    arguments = InspectArguments(
        steps=step or (),
        groups=groups,
        compare=compare,
        out=out,
        serve=serve,
        port=port,
        terminal=terminal,
        group=group,
        by=by,
    )
    run_inspect(runs, arguments, Display())


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="the folder that holds them")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: state, step, latest accuracy or reward, size, age."""
    from outdo.cli.runs import run_runs

    run_runs(folder, Console(), as_json=as_json)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="two or more run folders", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Compare runs: the settings in which they differ, and their last metrics."""
    from outdo.cli.compare import run_compare

    run_compare(runs, Console(), as_json=as_json)


@app.command()
def doctor(
    runs: Annotated[list[Path] | None, typer.Argument(help="run folders", show_default=False)] = None,
    packages: Annotated[bool, typer.Option("--packages", help="examine the installed packages instead")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="exit with status 1 if there is a warning")] = False,
) -> None:
    """Diagnose runs: what went well, what did not, why, and what to do. Or the installed packages."""
    from outdo.cli.doctor import run_doctor
    from outdo.cli.packages import run_packages

    if packages == bool(runs):
        raise UserError(["doctor: expected run folders, or --packages"])
    if packages:
        if strict:
            raise UserError(["--strict: has no effect with --packages, whose status is 1 if packages do not fit"])
        raise typer.Exit(run_packages(Console(), as_json=as_json))
    raise typer.Exit(run_doctor(runs or [], Console(), as_json=as_json, strict=strict))


@app.command()
def track(
    run: RunFolder,
    to: Annotated[
        list[str], typer.Option(help="wandb, tensorboard, trackio, mlflow, or a table; may be given several times")
    ],
) -> None:
    """Send a run that has ended to a tracker, as a new run there."""
    from outdo.cli.track import run_track

    run_track(run, to, Display())


@app.command()
def glossary(
    metric: Annotated[str | None, typer.Argument(help="unset: all of them", show_default=False)] = None,
) -> None:
    """Explain a metric: what it means, which values are healthy, and what to do otherwise."""
    from outdo.cli.glossary import run_glossary

    run_glossary(metric, Console())


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="a run folder, or two to compare", show_default=False)],
    *,
    out: Annotated[Path, typer.Option(help="a .png or .svg file")] = Path("curves.png"),
    metric: Annotated[
        list[str] | None, typer.Option(help="a metric to draw; may be given several times; unset: the usual ones")
    ] = None,
) -> None:
    """Draw the curves of a run."""
    from outdo.cli.plot import run_plot

    run_plot(runs, out, metric, Console())
