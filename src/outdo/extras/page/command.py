"""`outdo inspect`: a run as a page, in a file or served live, or one group in a terminal."""

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
from outdo.extras.page.select import CheckpointComparison, select_rows
from outdo.extras.page.terminal import QUANTITIES, show_group
from outdo.extras.record import parquet
from outdo.run.checkpoints.names import checkpoint_name
from outdo.run.display import Display
from outdo.run.folder.run_folder import is_alive
from outdo.utils.atomic import write_text_atomically
from outdo.utils.errors import UserError, did_you_mean

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
    terminal: bool = False  # print one group instead of a page
    group: int | None = None  # the one to print
    by: str | None = None  # the quantity that colours its tokens


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
    terminal: Annotated[bool, typer.Option("--terminal", help="print one group of one step in the terminal")] = False,
    group: Annotated[int | None, typer.Option(min=0, help="the group that --terminal prints")] = None,
    by: Annotated[
        str | None, typer.Option(help="what colours its tokens: moved, ratio, advantage, ...", show_default=False)
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="groups of each step on the page; unset: as many as fit")
    ] = None,
) -> None:
    """Show one run, or several to compare."""
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


def run_inspect(runs: Sequence[Path], arguments: InspectArguments, display: Display) -> None:
    """Write the page of one run, or of several to compare, to RUN/report.html or `out`, and print where it is.

    While the run is alive, the page is served on this machine instead and follows the run, unless `out` or `serve`
    decides otherwise. With `terminal`, one group of a step is printed.

    Raises: UserError with every mistake, before anything is read in full.
    """
    if mistakes := [*_mistakes(runs, arguments)]:
        raise UserError(mistakes)
    for run, step in itertools.product(runs, arguments.steps):
        parquet.read(run, step, ["group"])  # a damaged step is an error if it was requested, and not a gap on a page
    if arguments.terminal:
        _print_group(runs[0], arguments, display)
        return
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
    conflicts = _page_conflicts(runs, arguments) | _terminal_conflicts(runs, arguments)
    yield from (f"inspect: {sentence}" for sentence, applies in conflicts.items() if applies)
    if arguments.out is not None and (problem := not_writable(arguments.out)):
        yield problem
    for run in runs:
        if problem := no_run(run):
            yield problem
        else:
            yield from _missing_from(run, arguments)


def _page_conflicts(runs: Sequence[Path], arguments: InspectArguments) -> dict[str, bool]:
    """Return the possible mistakes in the options of a page, and whether each applies."""
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


def _terminal_conflicts(runs: Sequence[Path], arguments: InspectArguments) -> dict[str, bool]:
    """Return the possible mistakes in the options of `--terminal`, and whether each applies."""
    by, known, terminal = arguments.by, [*QUANTITIES], arguments.terminal
    hint = did_you_mean(by, known) if by else ""
    page_options = bool(arguments.serve) or arguments.out is not None or arguments.compare is not None
    return {
        "--terminal shows a group of one run": terminal and len(runs) > 1,
        "--terminal shows one step; give --step once": terminal and len(arguments.steps) > 1,
        "--terminal writes no page; leave out --out, --serve and --compare": terminal and page_options,
        "--group needs --terminal; --groups sets how many a page shows": arguments.group is not None and not terminal,
        "--by needs --terminal; on a page you choose the quantity yourself": by is not None and not terminal,
        f"--by {by}: expected one of {', '.join(known)}{hint}": by is not None and by not in known,
    }


def _missing_from(run: Path, arguments: InspectArguments) -> Iterator[str]:
    """Yield what the arguments choose and the run does not have."""
    known = parquet.recorded_steps(run)
    missing = [step for step in arguments.steps if step not in known]
    yield from (_not_recorded(run, step, known) for step in missing)
    if arguments.compare:
        yield from points.unusable(run, arguments.compare)
    if known and not missing and arguments.group is not None:
        yield from _no_group(run, _chosen_step(arguments.steps, known), arguments.group)
    needs_tokens = arguments.terminal or (arguments.compare and points.evaluations(run, arguments.compare) is None)
    if not known and needs_tokens:
        yield f"{run}: no step is recorded"


def _not_recorded(run: Path, step: int, known: Sequence[int]) -> str:
    names = [str(each) for each in known]
    if len(names) > 2 * NAMED:
        names = [*names[:NAMED], "...", *names[-NAMED:]]
    return f"{run}: step {step} is not recorded; recorded steps: {', '.join(names) or 'none'}"


def _chosen_step(steps: Sequence[int], recorded: Sequence[int]) -> int:
    """Return the chosen step, or else the last that is recorded."""
    return steps[0] if steps else recorded[-1]


def _no_group(run: Path, step: int, group: int) -> list[str]:
    known = sorted(set(parquet.read(run, step, ["group"])["group"].to_pylist()))
    if group in known:
        return []
    if not known:
        return [f"{run}: step {step} has no groups"]
    return [f"{run}: step {step} has no group {group}; its groups are {known[0]} to {known[-1]}"]


# ----------------------------------------------------------------------------------------------------------- output


def _print_group(run: Path, arguments: InspectArguments, display: Display) -> None:
    """Print the chosen group, or else the one that a page would show first."""
    step = _chosen_step(arguments.steps, parquet.recorded_steps(run))
    group = arguments.group
    if group is None:
        selected = select_rows(run, step, groups=1).table["group"]
        if not len(selected):
            raise UserError([f"{run}: step {step} has no groups"])
        group = selected[0].as_py()
    show_group(parquet.read(run, step), group, display.console, by=arguments.by or "moved")


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
    step = steps[0] if steps else max((each for each in recorded if each <= latest), default=recorded[0])
    return compare_checkpoints(step, *(run / "checkpoints" / checkpoint_name(each) for each in checkpoints))


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
