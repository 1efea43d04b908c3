"""`outdo inspect`: a run as a page, written to a file or served while the run goes on, or one group in a terminal."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outdo.cli.arguments import no_place, no_run
from outdo.observability.page.collect import View, alive, collect_run
from outdo.observability.page.html import page
from outdo.observability.page.select import TOKENS, Comparison, select
from outdo.observability.record import parquet
from outdo.observability.terminal import QUANTITIES, show_group
from outdo.storage.run_folder import write_text_atomically
from outdo.trainer.display import Display
from outdo.utils.errors import UserError, did_you_mean

NAMED = 12
"""Steps that a message names at each end of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What is to be seen of a run."""

    steps: Sequence[int]
    groups: int | None
    compare: tuple[str, str] | None
    terminal: bool
    group: int | None
    by: str | None


def run_inspect(
    runs: Sequence[Path],
    *,
    display: Display,
    out: Path | None = None,
    steps: Sequence[int] = (),
    groups: int | None = None,
    compare: tuple[str, str] | None = None,
    serve: bool | None = None,
    port: int = 0,
    terminal: bool = False,
    group: int | None = None,
    by: str | None = None,
) -> None:
    """Write the page of one run, or of two side by side, to RUN/report.html or `out`, and say where.

    While the run is alive the page is served on this machine instead, and follows it, unless `out` or `serve` says
    otherwise. `steps`: whose tokens are shown; `groups`: how many groups of each; `compare`: two checkpoints of the
    run under which one step's completions are shown. With `terminal` group `group` of a step is printed, its tokens
    coloured by the quantity `by`.

    Raises: UserError with everything that is wrong, before anything is read in full.
    """
    asked = Arguments(steps=steps, groups=groups, compare=compare, terminal=terminal, group=group, by=by)
    if mistakes := [*_mistakes(runs, asked, out=out, serve=serve, port=port)]:
        raise UserError(mistakes)
    for run, step in itertools.product(runs, steps):
        parquet.read(run, step, ["group"])  # one that is asked for and damaged is an error, and not a gap on a page
    if terminal:
        _print(runs[0], asked, display)
        return
    comparison = None if compare is None else _comparison(runs[0], compare, steps)
    shown = View(steps=steps, groups=groups, tokens=TOKENS // len(runs), comparison=comparison)
    following = out is None and compare is None and any(map(alive, runs))
    if following if serve is None else serve:
        _serve(runs, shown, port, display)
        return
    target = out or runs[0] / "report.html"
    write_text_atomically(target, page([collect_run(run, shown) for run in runs]))
    size = target.stat().st_size / 1e6
    display.say(f"the page is {target} ({size:.1f} MB); it opens in any browser, and holds it all")


# ---------------------------------------------------------------------------------------------------------- mistakes


def _mistakes(
    runs: Sequence[Path], asked: Arguments, *, out: Path | None, serve: bool | None, port: int
) -> Iterator[str]:
    """What is wrong with the options, with the file, and with each run."""
    clashes = _clashes(runs, asked, out=out, serve=serve, port=port)
    clashes |= _terminal_clashes(runs, asked, elsewhere=any([out is not None, serve, asked.compare is not None]))
    yield from (f"inspect: {sentence}" for sentence, is_so in clashes.items() if is_so)
    if out is not None and (wrong := no_place(out)):
        yield wrong
    for run in runs:
        if wrong := no_run(run):
            yield wrong
        else:
            yield from _not_in(run, asked)


def _clashes(
    runs: Sequence[Path], asked: Arguments, *, out: Path | None, serve: bool | None, port: int
) -> dict[str, bool]:
    """What may be wrong with the options of a page, and whether it is."""
    comparing, groups = asked.compare is not None, asked.groups
    same = comparing and len(set(map(_name, asked.compare or ()))) < 2
    return {
        "one run is shown, or two side by side": not 1 <= len(runs) <= 2,
        "the same run is given twice": len({run.resolve() for run in runs}) < len(runs),
        "--serve keeps the page in memory; leave out --out": all([serve, out is not None]),
        "--compare takes two checkpoints of one run": comparing and len(runs) > 1,
        "--compare takes two different checkpoints": same,
        "--compare shows one step; give --step once": comparing and len(asked.steps) > 1,
        "--compare writes a file; leave out --serve": all([comparing, serve]),
        f"--groups {groups}: a page shows at least one group": groups is not None and groups < 1,
        f"--port {port}: ports go from 0 (a free one) to 65535": not 0 <= port <= 65535,
    }


def _terminal_clashes(runs: Sequence[Path], asked: Arguments, *, elsewhere: bool) -> dict[str, bool]:
    """The same of the options that go with `--terminal`, or do not."""
    by, known, terminal = asked.by, [*QUANTITIES], asked.terminal
    unknown = by is not None and by not in known
    hint = did_you_mean(by, known) if by else ""
    return {
        "--terminal shows a group of one run": terminal and len(runs) > 1,
        "--terminal shows one step; give --step once": terminal and len(asked.steps) > 1,
        "--terminal writes no page; leave out --out, --serve and --compare": terminal and elsewhere,
        "--group goes with --terminal; --groups says how many a page shows": asked.group is not None and not terminal,
        "--by goes with --terminal; a page has all of them to choose from": by is not None and not terminal,
        f"--by {by}: expected one of {', '.join(known)}{hint}": unknown,
    }


def _not_in(run: Path, asked: Arguments) -> Iterator[str]:
    """What is asked of a run that it does not have."""
    known = parquet.recorded_steps(run)
    missing = [step for step in asked.steps if step not in known]
    yield from (_not_recorded(run, step, known) for step in missing)
    yield from (told for name in asked.compare or () if (told := _no_checkpoint(run, name)))
    if known and not missing and asked.group is not None:
        yield from _no_group(run, _last(asked.steps, known), asked.group)
    if not known and (asked.terminal or asked.compare):
        yield f"{run}: no step of it is recorded"


def _not_recorded(run: Path, step: int, known: Sequence[int]) -> str:
    names = [str(each) for each in known]
    if len(names) > 2 * NAMED:
        names = [*names[:NAMED], "...", *names[-NAMED:]]
    return f"{run}: step {step} is not recorded; recorded steps: {', '.join(names) or 'none'}"


def _last(steps: Sequence[int], recorded: Sequence[int]) -> int:
    """The step asked for, or else the last that is recorded."""
    return steps[0] if steps else recorded[-1]


def _no_group(run: Path, step: int, group: int) -> list[str]:
    known = sorted(set(parquet.read(run, step, ["group"])["group"].to_pylist()))
    if group in known:
        return []
    return [f"{run}: step {step} has no group {group}; its groups are {known[0]} to {known[-1]}" if known else
            f"{run}: step {step} has no groups"]  # fmt: skip


def _name(checkpoint: str) -> str:
    """`20` and `step_20` and `step_000020` as the folder's name."""
    number = checkpoint.removeprefix("step_")
    return f"step_{int(number):06d}" if number.isascii() and number.isdigit() and len(number) < 16 else checkpoint


def _no_checkpoint(run: Path, name: str) -> str | None:
    kept = sorted(path.name for path in (run / "checkpoints").glob("step_*") if path.is_dir())
    if _name(name) in kept:
        return None
    return f"{run}: --compare {name}: there is no such checkpoint; kept are {', '.join(kept) or 'none'}"


# ------------------------------------------------------------------------------------------------------------- doing


def _print(run: Path, asked: Arguments, display: Display) -> None:
    """The group asked for, or else the one that a page would show first."""
    step = _last(asked.steps, parquet.recorded_steps(run))
    group = asked.group
    if group is None:
        shown = select(run, step, groups=1).table["group"]
        if not len(shown):
            raise UserError([f"{run}: step {step} has no groups"])
        group = shown[0].as_py()
    show_group(parquet.read(run, step), group, display.console, by=asked.by or "moved")


def _comparison(run: Path, names: tuple[str, str], steps: Sequence[int]) -> Comparison:
    """Of the step asked for, or else the last that was recorded when the later checkpoint was written."""
    from outdo.observability.page.compare import comparison

    folders = [run / "checkpoints" / _name(name) for name in names]
    recorded = parquet.recorded_steps(run)
    latest = max(int(folder.name.removeprefix("step_")) for folder in folders)
    step = steps[0] if steps else max((each for each in recorded if each <= latest), default=recorded[0])
    return comparison(step, *folders)


def _serve(runs: Sequence[Path], shown: View, port: int, display: Display) -> None:
    try:
        from outdo.observability.page.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UserError(["inspect: the live page needs a server: pip install outdo[inspect]"]) from error
    display.say("open this address in a browser on this machine; Ctrl-C ends it")
    try:
        serve(runs, port=port, shown=shown, say=display.say)
    except KeyboardInterrupt:
        display.say("the page is no longer served")
