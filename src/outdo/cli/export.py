"""`outdo export`: the model of a run as an ordinary model folder."""

from pathlib import Path

from rich.console import Console

from outdo.cli.output import print_line
from outdo.trainer.export import export
from outdo.trainer.find_model import find_model


def run_export(run: str, folder: Path, console: Console, *, best: bool, dtype: str) -> None:
    """Write the model of the newest checkpoint, or of the best one, to a new folder (`outdo.trainer.export`)."""
    source = find_model(run, best=best)
    print_line(console, f"{source.name} is now in {export(source, folder, dtype=dtype)}")
