"""Read data into rows: JSONL, JSON, CSV and Parquet files, data sets of the Hub, and tasks of reasoning-gym.

A row that cannot be read does not stop the reading: it becomes a fault with its row number. So all faults of a file are
reported at once, together with those that `outdo.data.questions` finds in the other rows.
"""

import codecs
import csv
import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from outdo.data.data_set_names import data_set_called
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.extras import load_extra
from outdo.utils.hub_names import REASONING_GYM
from outdo.utils.text import counted

DATA_SET, STREAMED_PARQUET = "data set", "streamed Parquet"
RECORDS = {
    REASONING_GYM: "outdo.extras.gym.questions:records",
    DATA_SET: "outdo.extras.hub.data_sets:records",
    STREAMED_PARQUET: "outdo.extras.hub.data_sets:parquet_records",
}
"""What reads data that is in no plain file: called with the path and the commits of the run, it returns `Records`."""

LOCAL_SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".gz", ".zip", ".zst")
"""A name with one of these endings is a file on this machine, never a data set of the Hub."""

MAX_NESTING = 100
"""Levels of nested lists and objects. Deeper values could not be written as JSON again."""

MAX_DIGITS = sys.int_info.default_max_str_digits
"""Digits of an integer. Python writes no longer one as text."""

MAX_SHOWN = 20
"""An error message lists this many faults, and counts the rest."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row that cannot be used, and the reason."""

    row: int  # the line of a .jsonl file, otherwise the record; the first is 1
    reason: str


Parsed = tuple[int, Mapping[str, Any]] | Fault

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some programs write before UTF-8 text."""


def shorten(lines: Sequence[str], what: str = "faults", source: str | None = None) -> list[str]:
    """Return the first `MAX_SHOWN` lines of an error message, and a line that counts the rest."""
    rest = len(lines) - MAX_SHOWN
    if rest <= 0:
        return list(lines)
    prefix = f"{source}: " if source else ""
    return [*lines[:MAX_SHOWN], f"{prefix}and {rest:,} more {what} like these"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a file, unchanged."""

    source: str  # the path or the Hub name, as given
    values: Mapping[int, Mapping[str, Any]]  # row number -> its columns
    faults: tuple[Fault, ...]  # rows that could not be read; `outdo.data.questions.to_questions` reports them
    fingerprint: str  # SHA-256 of the file, or of the rows of a Hub data set
    commits: Mapping[str, str] = field(default_factory=dict)  # as `Records.commits`

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that any row has, in the order first seen."""
        return tuple(dict.fromkeys(name for row in self.values.values() for name in row))


def read_rows(
    path: str | Sequence[Mapping[str, Any]], *, limit: int | None = None, pinned: Mapping[str, str] | None = None
) -> Rows:
    """Read the first `limit` rows (all if `None`) of a file, a data set in a folder, one of the Hub, or reasoning-gym.

    Rows that a program has itself are only checked. The Hub is contacted only if `path` cannot be a file on this
    machine; `pinned` are commits as `Rows.commits`. Raises `UserError` if there is no such file, if it is empty, or if
    it cannot be read at all; single rows that cannot be read become `Rows.faults`.
    """
    if isinstance(path, str):
        records = records_of(path, pinned)
    else:
        path, records = "the rows", Records(path)
    if records is not None:
        rows = enumerate(islice(records.rows, limit), 1)
        parsed: list[Parsed] = [check_row(number, row) for number, row in rows]
        digest = hashlib.sha256(repr(parsed).encode("utf-8", "backslashreplace")).hexdigest()
    else:
        reader = _reader_of(path)
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise UserError([f"{path}: cannot be read: {error.strerror}"]) from None
        parsed = list(islice(reader(path, content), limit)) if content.strip() else []
        digest = hashlib.sha256(content).hexdigest()
    if not parsed:
        raise UserError([f"{path}: is empty: it holds no rows"])
    return Rows(
        source=path,
        values=dict(row for row in parsed if not isinstance(row, Fault)),
        faults=tuple(row for row in parsed if isinstance(row, Fault)),
        fingerprint=digest,
        commits=records.commits if records else {},
    )


class Records(NamedTuple):
    """Rows that are in no plain file, and the commit that they are from by the name of its repository."""

    rows: Iterable[Mapping[str, Any]]
    commits: Mapping[str, str] = {}  # empty if they are not from the Hub


def records_of(path: str, pinned: Mapping[str, str] | None = None) -> Records | None:
    """Return the records of a task of reasoning-gym, of a folder or of the Hub; None if `path` has to be a file."""
    if path.startswith(REASONING_GYM):
        return read_records(REASONING_GYM, path, pinned)
    if path.endswith(LOCAL_SUFFIXES) or Path(path).is_file():
        return None
    return read_records(DATA_SET, path, pinned) if data_set_called(path) else None


def read_records(source: str, path: str, pinned: Mapping[str, str] | None = None) -> Records:
    """Return the records of `path` as a kind of source in `RECORDS` reads them."""
    return load_extra(RECORDS[source], path)(path, pinned)


def fingerprint(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal: the same string as `read_rows(path).fingerprint`."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reader_of(path: str) -> Callable[[str, bytes], Iterator[Parsed]]:
    return READERS[format_of(path)]


def format_of(path: str) -> str:
    """Return the ending of a file that can be read. Raises `UserError` for every other path."""
    file = Path(path)
    if "\0" in path or not file.exists():
        hint = did_you_mean(file.name, [p.name for p in file.parent.glob("*.*")]) if "\0" not in path else ""
        raise UserError([f"{path}: no such file (looked in {Path.cwd()}){hint}"])
    if file.is_dir():
        readable = sorted(str(p) for p in file.iterdir() if p.suffix in READERS)
        raise UserError([f"{path}: is a folder; name a file in it{f', such as {readable[0]}' if readable else ''}"])
    if not file.is_file():  # reading a pipe may wait for ever, and /dev/zero has no end
        raise UserError([f"{path}: is a pipe or a device; expected a file"])
    if file.suffix not in READERS:
        raise UserError([f"{path}: unknown format; expected a file ending in {', '.join(READERS)}"])
    return file.suffix


# ------------------------------------------------------------------------------------------------------------ formats


def _jsonl(path: str, content: bytes) -> Iterator[Parsed]:
    refuse_utf16(path, content)
    for number, line in enumerate(content.removeprefix(BYTE_ORDER_MARK).split(b"\n"), 1):
        if line.strip():
            yield parse_line(number, line)


def parse_line(number: int, line: bytes) -> Parsed:
    """Return the row in a line of a .jsonl file, or why it cannot be used."""
    try:
        return check_row(number, _parse_json(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return Fault(number, f"not UTF-8 text (byte {error.start} of the line)")
    except json.JSONDecodeError as error:
        return Fault(number, f"broken JSON: {error.msg} (column {error.colno})")
    except ValueError as error:
        return Fault(number, str(error))
    except RecursionError:
        return Fault(number, "nested too deeply")


def _json(path: str, content: bytes) -> Iterator[Parsed]:
    try:
        value = _parse_json(_decode(path, content))
    except json.JSONDecodeError as error:
        hint = "; one row a line is .jsonl" if error.msg == "Extra data" else ""
        raise UserError([f"{path}: broken JSON in line {error.lineno}: {error.msg}{hint}"]) from None
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError([f"{path}: {error}"]) from None
    if not isinstance(value, list):
        raise UserError([f"{path}: expected a list of rows, [{{...}}, {{...}}]; one row a line is .jsonl"])
    yield from (check_row(number, row) for number, row in enumerate(value, 1))


def _csv(path: str, content: bytes) -> Iterator[Parsed]:
    csv.field_size_limit(max(len(content), csv.field_size_limit()))  # a long text is refused later, by its row
    records = csv.reader(io.StringIO(_decode(path, content), newline=""), strict=True)
    try:
        header = next(records, [])
    except csv.Error as error:
        raise UserError([f"{path}: broken CSV in its header: {error}"]) from None
    separator = {";": "semicolons", "\t": "tabs"}.get(next((c for c in "".join(header) if c in ";\t"), ""))
    if len(header) == 1 and separator:
        raise UserError([f"{path}: its columns are separated by {separator}; expected commas"])
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise UserError([f"{path}: the header names {', '.join(repeated)} twice"])
    number = 0
    try:
        for number, fields in enumerate(filter(None, records), 1):
            if len(fields) == len(header):
                yield check_row(number, dict(zip(header, fields, strict=True)))
            else:
                yield Fault(number, f"it has {counted(len(fields), 'field')}, the header {len(header)}")
    except csv.Error as error:  # after a broken quote the rows cannot be separated
        yield Fault(number + 1, f"broken CSV: {error}; nothing after it was read")


def _parquet(path: str, content: bytes) -> Iterator[Parsed]:
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
        rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError([f"{path}: not a whole Parquet file: {str(error).splitlines()[0]}"]) from None
    yield from (check_row(number, row) for number, row in enumerate(rows, 1))


READERS: Mapping[str, Callable[[str, bytes], Iterator[Parsed]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def refuse_utf16(path: str, content: bytes) -> None:
    """Raise `UserError` if a text begins as UTF-16 does: one sentence, and not one for each of its lines."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError([f"{path}: is UTF-16 text; expected UTF-8"])


def _decode(path: str, content: bytes) -> str:
    refuse_utf16(path, content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError([f"{path}: not UTF-8 text (line {line}, byte {error.start} of the file)"]) from None


# ------------------------------------------------------------------------------------------------------- single values


def _parse_json(text: str) -> Any:
    """Parse JSON without repeated keys, of which Python silently takes the last value.

    `check_row` refuses the other values that cannot be used, and then knows their row and column.
    """
    return json.loads(text, parse_int=_integer, object_pairs_hook=_object_without_repeated_keys)


@dataclass(frozen=True, slots=True)
class LongInteger:
    """An integer of a file that Python would not write as text again."""

    digits: int


def _integer(text: str) -> int | LongInteger:
    digits = len(text.removeprefix("-"))
    return int(text) if digits <= MAX_DIGITS else LongInteger(digits)


def _object_without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'"{next(name for name in names if names.count(name) > 1)}" is given twice')
    return row


def check_row(number: int, row: Any) -> Parsed:
    """Return a row if all its values can be used."""
    if not isinstance(row, Mapping):
        return Fault(number, f"expected an object with columns, found {json.dumps(row, default=repr)[:40]}")
    for name, value in row.items():
        reason = next(_value_faults(value), None) or next(_value_faults(name), None)
        if reason:
            return Fault(number, f"column {json.dumps(name)} {reason}")
    return number, row


def _value_faults(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield why a value cannot be passed to a tokenizer, to a reward in a worker process, or into a report."""
    if depth > MAX_NESTING:
        yield "is nested too deeply"
        return
    match value:
        case str():
            if "\0" in value:
                yield "holds a NUL character"
            elif _has_half_a_pair(value):
                yield "holds half of a surrogate pair, which is not a character"
        case float():
            if not math.isfinite(value):
                yield f"holds {value}, which is not a finite number"
        case LongInteger():
            yield f"holds an integer of {value.digits:,} digits, more than {MAX_DIGITS:,}; write it as text"
        case Mapping():
            for part in (*value.keys(), *value.values()):
                yield from _value_faults(part, depth + 1)
        case list() | tuple():
            for part in value:
                yield from _value_faults(part, depth + 1)


def _has_half_a_pair(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)
