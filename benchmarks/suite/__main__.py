"""The command line of the suite: `python -m benchmarks.suite`, or `make bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.suite.main import Asked, run_bench, run_list, run_scale
from outdo.trainer.display import Display
from outdo.utils.errors import OutdoError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    cases: Annotated[list[str] | None, typer.Argument(help="unset: the usual ones", show_default=False)] = None,
    *,
    against: Annotated[str | None, typer.Option(help="whom to compare with: trl-tuned,generate,...")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="turns of each that are counted")] = 5,
    model: Annotated[str | None, typer.Option(help="a model folder instead of the cases' random models")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="for each; unset: all cores")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    scale: Annotated[bool, typer.Option("--scale", help="how the costs of a step grow, instead")] = False,
    listed: Annotated[bool, typer.Option("--list", help="name cases and contenders instead")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write every figure here")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw them: .svg or .png")] = None,
    accept: Annotated[Path | None, typer.Option(help="write ratios and counts here, to be kept")] = None,
    gate: Annotated[Path | None, typer.Option(help="fail where ratios or counts are worse than those here")] = None,
) -> None:
    """Time outdo beside its peers, in turns, and beside what this machine can do."""
    names = against.split(",") if against else ()
    files = {"json": json_file, "plot": picture, "accept": accept, "gate": gate}
    asked = Asked(cases or (), names, rounds=rounds, model=model, threads=threads, device=device, **files)
    (run_list if listed else run_scale if scale else run_bench)(asked, Display())


def main() -> None:
    """Run the command; what the user can act upon is a message and an exit status."""
    try:
        app()
    except OutdoError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
