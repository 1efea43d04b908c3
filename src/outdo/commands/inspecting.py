"""`outdo inspect`: a run as a page, written to a file or served while the run goes on, or one group in a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outdo.display import Display
from outdo.errors import Mistakes
from outdo.folder import write_text_atomically
from outdo.inspector.gather import Shown, alive, gather
from outdo.inspector.page import page
from outdo.inspector.selection import TOKENS, Comparison
from outdo.inspector.terminal import show_group
from outdo.record import files
from outdo.signatures import did_you_mean

NAMED = 12
"""Steps that a message names at each end of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be seen of a run."""

    steps: Sequence[int]
    groups: int | None
    compare: tuple[str, str] | None
    terminal: bool
    group: int | None


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
) -> None:
    """Write the page of one run, or of two side by side, to RUN/report.html or `out`, and say where.

    While the run is alive the page is served on this machine instead, and follows it, unless `out` or `serve` says
    otherwise. `steps`: whose tokens are shown; `groups`: how many groups of each; `compare`: two checkpoints of the
    run under which one step's completions are shown. With `terminal` group `group` of a step is printed.

    Raises: Mistakes with everything that is wrong, before anything is read in full.
    """
    asked = Asked(steps=steps, groups=groups, compare=compare, terminal=terminal, group=group)
    mistakes = [*_clashes(runs, asked, out=out, serve=serve, port=port)]
    for run in runs:
        mistakes += [wrong] if (wrong := _no_run(run)) else _not_in(run, asked)
    if mistakes:
        raise Mistakes(mistakes)
    if terminal:
        _print(runs[0], asked, display)
        return
    comparison = None if compare is None else _comparison(runs[0], compare, steps)
    shown = Shown(steps=steps, groups=groups, tokens=TOKENS // len(runs), comparison=comparison)
    following = out is None and compare is None and any(map(alive, runs))
    if following if serve is None else serve:
        _serve(runs, shown, port, display)
        return
    target = out or runs[0] / "report.html"
    write_text_atomically(target, page([gather(run, shown) for run in runs]))
    size = target.stat().st_size / 1e6
    display.say(f"the page is {target} ({size:.1f} MB); it opens in any browser, and holds it all")


# ---------------------------------------------------------------------------------------------------------- mistakes


def _clashes(runs: Sequence[Path], asked: Asked, *, out: Path | None, serve: bool | None, port: int) -> Iterator[str]:
    """What is wrong with the options alone."""
    comparing, groups = asked.compare is not None, asked.groups
    same = comparing and len(set(map(_name, asked.compare or ()))) < 2
    elsewhere = any([out is not None, serve, comparing])
    wrong = {
        "one run is shown, or two side by side": not 1 <= len(runs) <= 2,
        "the same run is given twice": len({run.resolve() for run in runs}) < len(runs),
        "--serve keeps the page in memory; leave out --out": all([serve, out is not None]),
        "--compare takes two checkpoints of one run": comparing and len(runs) > 1,
        "--compare takes two different checkpoints": same,
        "--compare shows one step; give --step once": comparing and len(asked.steps) > 1,
        "--compare writes a file; leave out --serve": all([comparing, serve]),
        "--terminal shows a group of one run": asked.terminal and len(runs) > 1,
        "--terminal shows one step; give --step once": asked.terminal and len(asked.steps) > 1,
        "--terminal writes no page; leave out --out, --serve and --compare": asked.terminal and elsewhere,
        "--group goes with --terminal; --groups says how many a page shows": asked.group is not None
        and not asked.terminal,
        f"--groups {groups}: a page shows at least one group": groups is not None and groups < 1,
        f"--port {port}: ports go from 0 (a free one) to 65535": not 0 <= port <= 65535,
    }
    yield from (f"inspect: {sentence}" for sentence, is_so in wrong.items() if is_so)


def _not_in(run: Path, asked: Asked) -> Iterator[str]:
    """What is asked of a run that it does not have."""
    known = files.recorded_steps(run)
    missing = [step for step in asked.steps if step not in known]
    yield from (_not_recorded(run, step, known) for step in missing)
    yield from (told for name in asked.compare or () if (told := _no_checkpoint(run, name)))
    if known and not missing and asked.group is not None:
        yield from _no_group(run, _last(asked.steps, known), asked.group)
    if not known and (asked.terminal or asked.compare):
        yield f"{run}: no step of it is recorded"


def _no_run(run: Path) -> str | None:
    """Why there is nothing to show in a folder, if there is nothing."""
    if any((run / name).exists() for name in ("recipe.toml", "metrics.jsonl", "tokens")):
        return None
    if run.is_dir():
        return f"{run}: no run is there (it has neither recipe.toml nor metrics.jsonl nor tokens)"
    parent = run.parent
    near = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    return f"{run}: no such folder{did_you_mean(run.name, near)}"


def _not_recorded(run: Path, step: int, known: Sequence[int]) -> str:
    names = [str(each) for each in known]
    if len(names) > 2 * NAMED:
        names = [*names[:NAMED], "...", *names[-NAMED:]]
    return f"{run}: step {step} is not recorded; recorded steps: {', '.join(names) or 'none'}"


def _last(steps: Sequence[int], recorded: Sequence[int]) -> int:
    """The step asked for, or else the last that is recorded."""
    return steps[0] if steps else recorded[-1]


def _no_group(run: Path, step: int, group: int) -> list[str]:
    known = sorted(set(files.read(run, step, ["group"])["group"].to_pylist()))
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
    near = did_you_mean(_name(name), kept)
    return f"{run}: --compare {name}: there is no such checkpoint{near}; kept are {', '.join(kept) or 'none'}"


# ------------------------------------------------------------------------------------------------------------- doing


def _print(run: Path, asked: Asked, display: Display) -> None:
    table = files.read(run, _last(asked.steps, files.recorded_steps(run)))
    show_group(table, table["group"][0].as_py() if asked.group is None else asked.group, display.console)


def _comparison(run: Path, names: tuple[str, str], steps: Sequence[int]) -> Comparison:
    """Of the step asked for, or else the last that was recorded when the later checkpoint was written."""
    from outdo.inspector.compare import comparison

    folders = [run / "checkpoints" / _name(name) for name in names]
    recorded = files.recorded_steps(run)
    latest = max(int(folder.name.removeprefix("step_")) for folder in folders)
    step = steps[0] if steps else max((each for each in recorded if each <= latest), default=recorded[0])
    return comparison(step, *folders)


def _serve(runs: Sequence[Path], shown: Shown, port: int, display: Display) -> None:
    try:
        from outdo.inspector.live import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise Mistakes(["inspect: the live page needs a server: pip install outdo[inspect]"]) from error
    display.say("open this address in a browser on this machine; Ctrl-C ends it")
    try:
        serve(runs, port=port, shown=shown, say=display.say)
    except KeyboardInterrupt:
        display.say("the page is no longer served")
