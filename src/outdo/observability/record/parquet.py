"""The record on disk: `tokens/step_000040.parquet` in the run's folder, one file for each recorded step.

pandas, polars and DuckDB read a file as it is. One that stands there under its name is whole: it was written aside, and
renamed when it was on disk. Reading needs no torch.
"""

# pyarrow has no types:
# pyright: reportUnknownParameterType=false

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from outdo.storage import atomic
from outdo.storage.run_folder import write_bytes_atomically
from outdo.utils.errors import RunFolderError

FORMAT = 1
"""Version of the columns; see `outdo.observability.record.table`."""

KEY = b"outdo"
"""Where a file says what it is: JSON among the metadata of its schema."""

_NAME = re.compile(r"step_(\d{6,})\.parquet")


def path_of(folder: Path, step: int) -> Path:
    """Where the record of a step is, or would be."""
    return folder / "tokens" / f"step_{step:06d}.parquet"


def make_room(folder: Path) -> None:
    """Make the place for records, where it is missing.

    Raises: RunFolderError when the disk refuses, and where something else has that name.
    """
    place = folder / "tokens"
    try:
        atomic.make_folder(place)
    except OSError as error:
        raise RunFolderError(f"{place}: cannot hold the record: {error.strerror}") from error
    if not place.is_dir():
        raise RunFolderError(f"{place}: cannot hold the record: it is not a folder")


def write(folder: Path, step: int, table: pa.Table) -> Path:
    """Publish a step's record, in place of one that is there; on disk when this returns.

    Raises: RunFolderError when the disk refuses. The records published before are untouched then.
    """
    make_room(folder)
    path = path_of(folder, step)
    content = pa.BufferOutputStream()
    words = _columns_of_words(table.schema)  # numbers hardly repeat: a dictionary of them costs time and room
    pq.write_table(
        table,
        content,
        compression="zstd",
        write_page_checksum=True,
        use_dictionary=words,  # pyright: ignore[reportArgumentType]
    )
    write_bytes_atomically(path, content.getvalue().to_pybytes())
    return path


def recorded_steps(folder: Path) -> list[int]:
    """The steps whose record is published, in order; what a crash left half-written has no such name."""
    names = (_NAME.fullmatch(path.name) for path in (folder / "tokens").glob("step_*.parquet"))
    return sorted(int(name[1]) for name in names if name)


def read(folder: Path, step: int, columns: Sequence[str] | None = None) -> pa.Table:
    """A step's record, or these columns of it.

    Raises: RunFolderError naming the file where there is none, where it is damaged or of a newer outdo, and where it
    has no such column.
    """
    path = path_of(folder, step)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check(path, file.schema_arrow, columns)
            return file.read(columns=None if columns is None else list(columns))
    except FileNotFoundError:
        known = ", ".join(map(str, recorded_steps(folder))) or "none"
        raise RunFolderError(f"{path}: step {step} has no record; recorded steps: {known}") from None
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: cannot be read as Parquet: {error}") from error


def about(schema: pa.Schema) -> dict[str, Any]:
    """What a record says of itself: format, step, version of outdo, and what its run added; empty if it is no record.

    `read(folder, step).schema` is such a schema.
    """
    said = (schema.metadata or {}).get(KEY, b"{}")
    try:
        known = json.loads(said)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def drop_after(folder: Path, step: int) -> None:
    """Remove the records of all later steps, so that a run resumed at `step` writes each step once."""
    _remove([path_of(folder, later) for later in reversed(recorded_steps(folder)) if later > step])


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed while writing left. One process at a time may write."""
    _remove(list((folder / "tokens").glob(".step_*.parquet.tmp")))


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            atomic.remove_tree(path)
        except OSError as error:
            raise RunFolderError(f"{path}: was not removed: {error.strerror}") from error


def _columns_of_words(schema: pa.Schema) -> list[str]:
    """Columns of texts, ids and truths, by the names Parquet has for what is inside of lists."""

    def inside(name: str, kind: pa.DataType) -> list[str]:
        if pa.types.is_list(kind):
            return inside(f"{name}.list.element", kind.value_type)
        return [] if pa.types.is_floating(kind) or pa.types.is_struct(kind) else [name]

    return [name for field in schema for name in inside(field.name, field.type)]


def _check(path: Path, schema: pa.Schema, columns: Sequence[str] | None) -> None:
    version = about(schema).get("format")
    if version != FORMAT:
        told = f"of format {version}, and this outdo reads {FORMAT}" if version else "no record of outdo's"
        raise RunFolderError(f"{path}: {told}")
    for column in columns or ():
        if column not in schema.names:
            near = difflib.get_close_matches(column, schema.names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(schema.names)}"
            raise RunFolderError(f"{path}: has no column {column!r}{hint}")
