"""`outdo export`: the model of a run as an ordinary model folder."""

from pathlib import Path

from rich.console import Console

from outdo.cli.output import print_line
from outdo.trainer.export import SEQUENCES, export, export_merged
from outdo.trainer.find_model import find_model


def run_export(run: str, folder: Path, console: Console, *, best: bool, dtype: str, merge: bool) -> None:
    """Write the model of the newest checkpoint, or of the best one, to a new folder (`outdo.trainer.export`)."""
    source = find_model(run, best=best)
    if not merge:
        print_line(console, f"{source.name} is now in {export(source, folder, dtype=dtype)}")
        return
    error = export_merged(source, folder, dtype=dtype)
    print_line(console, f"{source.name} is now in {folder}, its adapter merged into the base")
    what = f"largest difference from the adapter's log-probabilities, in float64 on {SEQUENCES} fixed sequences"
    print_line(console, f"{what} of 64 tokens: {error.weights:.1e} nats")
    print_line(console, f"(products in float32 change the log-probabilities of the adapter by {error.products:.1e})")
