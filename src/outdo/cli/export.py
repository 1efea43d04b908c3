"""`outdo export`: the model of a run as an ordinary model folder."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from outdo.cli.output import print_line
from outdo.storage.hub import push
from outdo.trainer.export import SEQUENCES, export, export_merged
from outdo.trainer.find_model import ModelRef, find_model
from outdo.trainer.model_card import card
from outdo.trainer.progress_bar import progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Where `outdo export` uploads the model; nowhere without a name."""

    name: str | None
    public: bool
    licence: str | None


def run_export(
    run: str, folder: Path, console: Console, *, best: bool, dtype: str, merge: bool, upload: Upload
) -> None:
    """Write the model of the newest checkpoint, or of the best one, to a new folder (`outdo.trainer.export`).

    With `upload` it is also sent to the Hub. A folder that an earlier call has written, and not uploaded, is then used.
    """
    source = find_model(run, best=best)
    if upload.name is None or not _is_written(source, folder, upload.licence):
        _write(source, folder, console, dtype=dtype, merge=merge, licence=upload.licence)
    if upload.name is not None:
        message = f"Model of {source.name}"
        address = push(folder, upload.name, private=not upload.public, message=message)
        print_line(console, f"uploaded to {address}")


def _is_written(source: ModelRef, folder: Path, licence: str | None) -> bool:
    """Return whether a folder has the card of this model: a folder gets its name when it is complete."""
    path = folder / "README.md"
    if source.recipe is None or not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    return text in (card(source, is_adapter=adapter, licence=licence) for adapter in (False, True))


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
