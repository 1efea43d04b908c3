"""The command line of the suite: `python -m benchmarks.suite`, or `make bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.suite.main import Arguments, run_bench, run_list, run_scale
from outdo.run.display import Display
from outdo.utils.errors import OutdoError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    cases: Annotated[
        list[str] | None, typer.Argument(help="cases to run; unset: the usual ones", show_default=False)
    ] = None,
    *,
    against: Annotated[str | None, typer.Option(help="implementations to compare with: trl-tuned,generate,...")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds, after the warm-up")] = 5,
    model: Annotated[str | None, typer.Option(help="a model folder instead of the random models of the cases")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="threads of each implementation; unset: all cores")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    scale: Annotated[bool, typer.Option("--scale", help="measure how the costs of a step grow instead")] = False,
    listed: Annotated[bool, typer.Option("--list", help="list cases and implementations instead")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write every figure to this file")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw the figures: .svg or .png")] = None,
    accept: Annotated[Path | None, typer.Option(help="write ratios and counts to this file, as a baseline")] = None,
    gate: Annotated[Path | None, typer.Option(help="fail if ratios or counts are worse than in this baseline")] = None,
) -> None:
    """Time outdo and other implementations in turn, and compare with the roofline of this machine."""
    names = against.split(",") if against else ()
    arguments = Arguments(
        cases or (),
        names,
        rounds=rounds,
        model=model,
        threads=threads,
        device=device,
        json=json_file,
        plot=picture,
        accept=accept,
        gate=gate,
    )
    command = run_list if listed else run_scale if scale else run_bench
    command(arguments, Display())


def main() -> None:
    """Run the command. An error that the user can fix is printed without a traceback, and sets the exit status."""
    try:
        app()
    except OutdoError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
