"""Rows that stay on disk: the lines of a .jsonl file, and tables that the library `datasets` maps into memory."""

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Protocol, cast

from outdo.data.files import (
    BYTE_ORDER_MARK,
    STREAMED_PARQUET,
    Fault,
    Parsed,
    Records,
    Rows,
    check_row,
    format_of,
    parse_line,
    read_records,
    records_of,
    refuse_utf16,
)
from outdo.utils.errors import UserError

ROWS_OF_HEAD = 100
"""Rows by which the columns of question and answer are detected; every other row has to have these."""


class StoredRows(Protocol):
    """Rows on disk. Several threads may read them at once."""

    source: str  # the path or the Hub name, as given
    fingerprint: str  # that of `files.read_rows` for the same rows
    commits: Mapping[str, str]  # as `files.Rows.commits`

    def __len__(self) -> int:
        """Return the number of rows, with those that cannot be used."""
        ...

    def __iter__(self) -> Iterator[Parsed]:
        """Read all rows from the first on."""
        ...

    def __getitem__(self, index: int) -> Parsed:
        """Read the row at a place; 0 is the first."""
        ...


def open_rows(path: str, *, limit: int | None = None, pinned: Mapping[str, str] | None = None) -> StoredRows:
    """Return the first `limit` rows (all if `None`) of a .jsonl or .parquet file, or of a data set of `datasets`.

    `pinned` are commits as `files.Rows.commits`.

    Raises `UserError` if there is no such file, if it has another format, or if it holds no rows.
    """
    records = records_of(path, pinned)
    suffix = "" if records is not None else format_of(path)
    if suffix == ".parquet":
        records = read_records(STREAMED_PARQUET, path)
    if records is not None and not isinstance(records.rows, Iterator):  # what is generated has no rows on disk
        rows = TableRows(path, records, limit)
    elif suffix == ".jsonl":
        rows = LineRows(path, limit)
    else:
        expected = "a .jsonl or .parquet file, or a data set that the library datasets reads"
        raise UserError([f"{path}: cannot be streamed; expected {expected}"])
    if not len(rows):
        raise UserError([f"{path}: is empty: it holds no rows"])
    return rows


def head_of(rows: StoredRows) -> Rows:
    """Return the first rows, in memory."""
    parsed = list(islice(rows, ROWS_OF_HEAD))
    values = dict(row for row in parsed if not isinstance(row, Fault))
    return Rows(source=rows.source, values=values, faults=(), fingerprint=rows.fingerprint)


class LineRows:
    """The lines of a .jsonl file. In memory are their places in it, 20 bytes a line.

    Raises `UserError` if the file cannot be read, or if it changes after its first reading.
    """

    def __init__(self, path: str, limit: int | None = None) -> None:
        self.source = path
        self.commits: Mapping[str, str] = {}
        self._starts, self._lengths, self._numbers = array("Q"), array("I"), array("Q")
        digest, start = hashlib.sha256(), 0
        with self._opened() as file:
            self._state = _state_of(file)
            for number, line in enumerate(file, 1):
                digest.update(line)
                if not start:
                    refuse_utf16(path, line)
                content = line if start else line.removeprefix(BYTE_ORDER_MARK)
                if len(self) != limit and content.strip():
                    self._starts.append(start + len(line) - len(content))
                    self._lengths.append(len(content))
                    self._numbers.append(number)
                start += len(line)
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Parsed]:
        with self._opened() as file:
            self._check_unchanged(file)
            for index in range(len(self)):
                yield self._read(file, index)

    def __getitem__(self, index: int) -> Parsed:
        with self._opened() as file:
            self._check_unchanged(file)
            return self._read(file, index)

    def _opened(self) -> BinaryIO:
        try:
            return open(self.source, "rb")
        except OSError as error:
            raise UserError([f"{self.source}: cannot be read: {error.strerror}"]) from None

    def _check_unchanged(self, file: BinaryIO) -> None:
        if _state_of(file) != self._state:
            raise UserError([f"{self.source}: the file has changed since the run read it first"])

    def _read(self, file: BinaryIO, index: int) -> Parsed:
        file.seek(self._starts[index])
        return parse_line(self._numbers[index], file.read(self._lengths[index]).rstrip(b"\n"))


class TableRows:
    """The first rows of a table that `datasets` maps into memory: the system keeps of it what it has room for."""

    def __init__(self, source: str, records: Records, limit: int | None = None) -> None:
        self.source = source
        self.commits: Mapping[str, str] = records.commits
        self.table = table = cast("Sequence[Mapping[str, Any]]", records.rows)
        self._length = len(table) if limit is None else min(limit, len(table))
        digest = hashlib.sha256(b"[")
        for index, row in enumerate(self):
            digest.update((", " * bool(index) + repr(row)).encode("utf-8", "backslashreplace"))
        digest.update(b"]")
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Parsed]:
        return (check_row(number, row) for number, row in enumerate(islice(self.table, self._length), 1))

    def __getitem__(self, index: int) -> Parsed:
        return check_row(index + 1, self.table[index])


def _state_of(file: BinaryIO) -> tuple[int, ...]:
    """Return what differs if a file was written again, or replaced by another one."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
