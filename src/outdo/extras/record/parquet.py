"""The record on disk: `tokens/step_000040.parquet` in the run's folder, one file per recorded step.

pandas, polars and DuckDB can read the files. A file with this name is complete: it was written under a temporary name
and renamed when it was on disk. Reading needs no torch.
"""

# pyarrow has no types:
# pyright: reportUnknownParameterType=false

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from outdo.utils import atomic
from outdo.utils.atomic import write_bytes_atomically
from outdo.utils.errors import RunFolderError, did_you_mean

FORMAT = 1
"""Version of the columns; see `outdo.extras.record.table`."""

KEY = b"outdo"
"""The key of the schema's metadata under which a file describes itself, as JSON."""

_NAME = re.compile(r"step_(\d{6,})\.parquet")


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the record of a step, whether it exists or not."""
    return folder / "tokens" / f"step_{step:06d}.parquet"


def make_folder(folder: Path) -> None:
    """Create the folder for records if it is missing.

    Raises: RunFolderError if the disk refuses, or if something else has that name.
    """
    tokens = folder / "tokens"
    try:
        atomic.make_folder(tokens)
    except OSError as error:
        raise RunFolderError(f"{tokens}: cannot hold the record: {error.strerror}") from error
    if not tokens.is_dir():
        raise RunFolderError(f"{tokens}: cannot hold the record: it is not a folder")


def write(folder: Path, step: int, table: pa.Table) -> Path:
    """Write a step's record, replacing an existing one; it is on disk when this returns.

    Raises: RunFolderError if the disk refuses. Earlier records do not change then.
    """
    make_folder(folder)
    path = path_of(folder, step)
    content = pa.BufferOutputStream()
    words = _dictionary_columns(table.schema)  # numbers hardly repeat: a dictionary of them costs time and space
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
    """Return the recorded steps, in order; files that a crash left incomplete have another name."""
    names = (_NAME.fullmatch(path.name) for path in (folder / "tokens").glob("step_*.parquet"))
    return sorted(int(name[1]) for name in names if name)


def read(folder: Path, step: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a step's record, or these columns of it.

    Raises: RunFolderError with the name of the file if it is missing, damaged, written by a newer outdo, or without
    such a column.
    """
    with _opened(folder, step, columns or ()) as file:
        return file.read(columns=None if columns is None else list(columns))


def read_each(folder: Path, step: int, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield these columns of a step's record with their names, one at a time, so that only one is in memory.

    Raises: RunFolderError like `read`.
    """
    with _opened(folder, step, columns) as file:
        for name in columns:
            yield name, file.read(columns=[name])[name]


@contextmanager
def _opened(folder: Path, step: int, columns: Sequence[str]) -> Iterator[pq.ParquetFile]:
    """Open a step's record and check that it has the columns; a failure in the block becomes a RunFolderError."""
    path = path_of(folder, step)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check(path, file.schema_arrow, columns)
            yield file
    except FileNotFoundError:
        known = ", ".join(map(str, recorded_steps(folder))) or "none"
        raise RunFolderError(f"{path}: step {step} has no record; recorded steps: {known}") from None
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path}: cannot be read as Parquet: {error}") from error


def metadata_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a record: format, step, version of outdo, and what its run added; empty if it has none.

    `schema` is, for example, `read(folder, step).schema`.
    """
    text = (schema.metadata or {}).get(KEY, b"{}")
    try:
        metadata = json.loads(text)
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def drop_after(folder: Path, step: int) -> None:
    """Remove the records of all later steps, so that a run that resumes at `step` writes each step once."""
    _remove([path_of(folder, later) for later in reversed(recorded_steps(folder)) if later > step])


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a process that was killed while writing. Only one process at a time may write."""
    _remove(list((folder / "tokens").glob(".step_*.parquet.tmp")))


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            atomic.remove_tree(path)
        except OSError as error:
            raise RunFolderError(f"{path}: was not removed: {error.strerror}") from error


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of texts, ids and booleans, under Parquet's names for list elements."""

    def inside(name: str, kind: pa.DataType) -> list[str]:
        if pa.types.is_list(kind):
            return inside(f"{name}.list.element", kind.value_type)
        if pa.types.is_struct(kind):
            return [column for child in kind for column in inside(f"{name}.{child.name}", child.type)]
        return [] if pa.types.is_floating(kind) else [name]

    return [name for field in schema for name in inside(field.name, field.type)]


def _check(path: Path, schema: pa.Schema, columns: Sequence[str]) -> None:
    version = metadata_of(schema).get("format")
    if version != FORMAT:
        problem = f"has format {version}; this outdo reads {FORMAT}" if version else "not a record of outdo"
        raise RunFolderError(f"{path}: {problem}")
    for column in columns:
        if column not in schema.names:
            hint = did_you_mean(column, schema.names) or f"; there are {', '.join(schema.names)}"
            raise RunFolderError(f"{path}: has no column {column!r}{hint}")
