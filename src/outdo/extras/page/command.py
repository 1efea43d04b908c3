"""`outdo inspect`: a run as a page, in a file or served live."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from outdo.cli.arguments import no_run, not_writable
from outdo.extras.page import points
from outdo.extras.page.collect import View
from outdo.extras.page.held_out import compare_evaluations
from outdo.extras.page.html import render_page
from outdo.extras.page.runs import MOST_RUNS, collect_runs
from outdo.extras.page.select import CheckpointComparison
from outdo.extras.record import parquet
from outdo.run.checkpoints.names import checkpoint_name
from outdo.run.display import Display
from outdo.run.folder.run_folder import is_alive
from outdo.utils.atomic import write_text_atomically
from outdo.utils.errors import UserError

NAMED = 12
"""How many steps a message lists from each end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectArguments:
    """The arguments of `outdo inspect`."""

    steps: Sequence[int] = ()  # whose tokens are shown
    groups: int | None = None  # of each step; None: as many as fit
    compare: tuple[str, str] | None = None  # two points of a run: evaluations, checkpoints or both (`points`)
    out: Path | None = None
    serve: bool | None = None  # None: if the run is alive
    port: int = 0


def command(
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
    groups: Annotated[
        int | None, typer.Option(min=1, help="groups of each step on the page; unset: as many as fit")
    ] = None,
) -> None:
    """Show one run, or several to compare."""
    arguments = InspectArguments(steps=step or (), groups=groups, compare=compare, out=out, serve=serve, port=port)
    run_inspect(runs, arguments, Display())


def run_inspect(runs: Sequence[Path], arguments: InspectArguments, display: Display) -> None:
    """Write the page of one run, or of several to compare, to RUN/report.html or `out`, and print where it is.

    While the run is alive, the page is served on this machine instead and follows the run, unless `out` or `serve`
    decides otherwise.

    Raises: UserError with every mistake, before anything is read in full.
    """
    if mistakes := [*_mistakes(runs, arguments)]:
        raise UserError(mistakes)
    for run, step in itertools.product(runs, arguments.steps):
        parquet.read(run, step, ["group"])  # a damaged step is an error if it was requested, and not a gap on a page
    compare, out = arguments.compare, arguments.out
    view = View(steps=arguments.steps, groups=arguments.groups)
    if compare is not None:
        view = _compared(runs[0], compare, view, display)
    live = arguments.serve
    if live is None:
        live = out is None and compare is None and any(map(is_alive, runs))
    if live:
        _serve(runs, view, arguments.port, display)
        return
    target = out or runs[0] / "report.html"
    write_text_atomically(target, render_page(collect_runs(runs, view)))
    size = target.stat().st_size / 1e6
    display.say(f"the page is {target} ({size:.1f} MB); it opens in any browser and needs no other file")


# ---------------------------------------------------------------------------------------------------------- mistakes


def _mistakes(runs: Sequence[Path], arguments: InspectArguments) -> Iterator[str]:
    """Yield the mistakes in the options, in the file to write, and in the choice from each run."""
    yield from (f"inspect: {sentence}" for sentence, applies in _conflicts(runs, arguments).items() if applies)
    if arguments.out is not None and (problem := not_writable(arguments.out)):
        yield problem
    for run in runs:
        if problem := no_run(run):
            yield problem
        else:
            yield from _missing_from(run, arguments)


def _conflicts(runs: Sequence[Path], arguments: InspectArguments) -> dict[str, bool]:
    """Return the possible mistakes in the options, and whether each applies."""
    comparing, serving = arguments.compare is not None, arguments.serve is True
    steps = {points.step_of(point) for point in arguments.compare or ()}
    return {
        f"{len(runs)} runs: a page holds one to {MOST_RUNS}": not 1 <= len(runs) <= MOST_RUNS,
        "the same run is given twice": len({run.resolve() for run in runs}) < len(runs),
        "--serve keeps the page in memory; leave out --out": serving and arguments.out is not None,
        "--compare takes two points of one run": comparing and len(runs) > 1,
        "--compare takes two different points": comparing and len(steps) < 2 and None not in steps,
        "--compare shows one step; give --step once": comparing and len(arguments.steps) > 1,
        "--compare writes a file; leave out --serve": comparing and serving,
    }


def _missing_from(run: Path, arguments: InspectArguments) -> Iterator[str]:
    """Yield what the arguments choose and the run does not have."""
    known = parquet.recorded_steps(run)
    yield from (_not_recorded(run, step, known) for step in arguments.steps if step not in known)
    if arguments.compare:
        yield from points.unusable(run, arguments.compare)
        if not known and points.evaluations(run, arguments.compare) is None:
            yield f"{run}: no step is recorded"


def _not_recorded(run: Path, step: int, known: Sequence[int]) -> str:
    names = [str(number) for number in known]
    if len(names) > 2 * NAMED:
        names = [*names[:NAMED], "...", *names[-NAMED:]]
    return f"{run}: step {step} is not recorded; recorded steps: {', '.join(names) or 'none'}"


# ----------------------------------------------------------------------------------------------------------- output


def _compared(run: Path, compare: points.Points, view: View, display: Display) -> View:
    """Return the view with what is compared: the held-out answers, a step's answers under two checkpoints, or both."""
    evaluations, checkpoints = points.evaluations(run, compare), points.checkpoints(run, compare)
    if evaluations is not None:
        display.say(points.sentence(compare_evaluations(run, *evaluations)))
    comparison = None if checkpoints is None else _comparison(run, checkpoints, view.steps)
    return replace(view, evaluations=evaluations, comparison=comparison)


def _comparison(run: Path, checkpoints: tuple[int, int], steps: Sequence[int]) -> CheckpointComparison | None:
    """Compare on the chosen step, or else on the last one recorded when the later checkpoint was written."""
    from outdo.extras.page.compare import compare_checkpoints

    recorded = parquet.recorded_steps(run)
    if not recorded:
        return None
    latest = max(checkpoints)
    step = steps[0] if steps else max((number for number in recorded if number <= latest), default=recorded[0])
    return compare_checkpoints(step, *(run / "checkpoints" / checkpoint_name(number) for number in checkpoints))


def _serve(runs: Sequence[Path], view: View, port: int, display: Display) -> None:
    try:
        from outdo.extras.page.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UserError(["inspect: the live page needs a server: pip install outdo[inspect]"]) from error
    display.say("open this address in a browser on this machine; Ctrl-C stops the server")
    try:
        serve(runs, port=port, view=view, report=display.say)
    except KeyboardInterrupt:
        display.say("the server has stopped")
