"""`outdo export`: the model of a run, or of an unfinished fine-tuning, as an ordinary model folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from outdo.cli.output import print_line
from outdo.config.names import UPLOADS
from outdo.models.inspect_folder import EITHER, inspect_folder
from outdo.run.export.export import SEQUENCES, export, export_merged, exported_dtype
from outdo.run.export.find_model import ModelRef, find_model
from outdo.run.export.model_card import card
from outdo.run.progress_bar import progress
from outdo.utils.extras import load_extra


def command(
    run: Annotated[str, typer.Argument(help="a run folder or OUT.unfinished; with --merge also an adapter folder")],
    folder: Annotated[Path, typer.Argument(help="a new folder for the model")],
    *,
    best: Annotated[bool, typer.Option("--best", help="the best checkpoint instead of the newest")] = False,
    dtype: Annotated[
        Literal["source", "float32", "bfloat16", "float16"],
        typer.Option(help="dtype of the weights; source: that of the model that the run started from"),
    ] = "source",
    merge: Annotated[bool, typer.Option("--merge", help="merge the adapter into its base: a whole model")] = False,
    push: Annotated[str | None, typer.Option(help="also upload the folder to the Hub: owner/name")] = None,
    public: Annotated[bool, typer.Option("--public", help="create it for everybody; otherwise it is private")] = False,
    licence: Annotated[str | None, typer.Option("--license", help="the model's licence: apache-2.0, mit, ...")] = None,
) -> None:
    """Write the model of the newest checkpoint, or of the best one, to a new folder (`outdo.run.export.export`).

    With `push` it is also sent to the Hub. A folder that an earlier call has written, and not uploaded, is then used.
    """
    upload = load_extra(UPLOADS["hub"], "--push") if push is not None else None
    console, source = Console(), find_model(run, best=best)
    if upload is None or not _is_written(source, folder, dtype=dtype, merge=merge, licence=licence):
        _write(source, folder, console, dtype=dtype, merge=merge, licence=licence)
    if upload is not None:
        address = upload(folder, push, private=not public, message=f"Model of {source.name}")
        print_line(console, f"uploaded to {address}")


def _is_written(source: ModelRef, folder: Path, *, dtype: str, merge: bool, licence: str | None) -> bool:
    """Return whether a folder has this model and its card: a folder gets its name when it is complete."""
    path = folder / "README.md"
    if source.recipe is None or not path.is_file():
        return False
    is_adapter = inspect_folder(source.model).adapter is not None and not merge
    if path.read_text(encoding="utf-8") != card(source, is_adapter=is_adapter, licence=licence):
        return False
    return is_adapter or inspect_folder(folder, EITHER).dtype == exported_dtype(source, dtype)


def _write(source: ModelRef, folder: Path, console: Console, *, dtype: str, merge: bool, licence: str | None) -> None:
    if not merge:
        with progress(f"exporting {source.name}"):
            written = export(source, folder, dtype=dtype, licence=licence)
        print_line(console, f"{source.name} is now in {written}")
        return
    with progress(f"merging the adapter of {source.name}"):
        error = export_merged(source, folder, dtype=dtype, licence=licence)
    print_line(console, f"{source.name} is now in {folder}, its adapter merged into the base")
    what = f"largest difference from the adapter's log-probabilities, in float64 on {SEQUENCES} fixed sequences"
    print_line(console, f"{what} of 64 tokens: {error.weights:.1e} nats")
    print_line(console, f"(products in float32 change the log-probabilities of the adapter by {error.products:.1e})")
