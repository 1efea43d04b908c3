"""Read the files of a run folder: only files inside the folder, and never more than fits in memory.

A page can be sent by mail, and a browser shows the served page. So links in the folder to files elsewhere are not
followed: the page would contain their content.
"""

import json
import os
import tomllib
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from outdo.utils.errors import RunFolderError

LARGEST_TABLE = 1_000_000
"""The maximum size of a recipe or a summary in bytes; a larger file is not read."""

LONGEST_LINE = 1_000_000
"""The maximum length of a line of `metrics.jsonl` in bytes; a longer line is left out."""

LARGEST_METRICS = 16_000_000
"""The maximum size of the metrics in bytes: the last steps are kept, about 15,000 of them."""

FARTHEST_BACK = 256_000_000
"""How many bytes of `metrics.jsonl` are read at most, counted from its end."""

Say = Callable[[str], None]
"""A function that takes a sentence about data that is left out."""


def own(folder: Path, path: Path) -> Path:
    """Return the real path of `path` if it is a regular file in `folder`.

    Raises: FileNotFoundError if there is nothing; RunFolderError if it leads elsewhere, or is a pipe or a device.
    """
    real = path.resolve(strict=True)
    if not real.is_relative_to(folder.resolve()):
        raise RunFolderError(f"{path}: leads out of the run folder; it is not read")
    if not real.is_file():
        raise RunFolderError(f"{path}: is not a file; it is not read")
    return real


def table(folder: Path, name: str, say: Say) -> dict[str, Any]:
    """Read a small JSON or TOML file with one table; return an empty table if it is missing or damaged."""
    parse = tomllib.loads if name.endswith(".toml") else json.loads
    try:
        with own(folder, folder / name).open("rb") as file:
            content = file.read(LARGEST_TABLE + 1)
        found = parse(content.decode()) if len(content) <= LARGEST_TABLE else None
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, RunFolderError):
        found = None
    if not isinstance(found, dict):
        say(f"{name} cannot be read and is left out")
        return {}
    return found


def metrics(folder: Path, say: Say) -> list[Mapping[str, Any]]:
    """Read the records of `metrics.jsonl` that have a step, oldest first; from a very long file, only the last ones.

    An incomplete last line, which is still being written or which a crash cut off, is ignored. Raises RunFolderError if
    the file exists and cannot be opened.
    """
    path = folder / "metrics.jsonl"
    try:
        with own(folder, path).open("rb") as file:
            records = [(number, _record(line)) for number, line in _last_lines(file, say)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    for number, record in records:
        if record is None:
            say(f"metrics.jsonl, line {number}: not a JSON object, or too long; it is left out")
    found = [record for _, record in records if record is not None]
    if without := sum(not is_step(record.get("step")) for record in found):
        say(f"metrics.jsonl: {without} lines without a step are left out")
    return [record for record in found if is_step(record.get("step"))]


def _last_lines(file: BinaryIO, say: Say) -> deque[tuple[int, bytes]]:
    """Return the last complete lines with their numbers, up to the size limit; a line that is too long is empty."""
    kept: deque[tuple[int, bytes]] = deque()
    left_out = max(0, file.seek(0, os.SEEK_END) - FARTHEST_BACK)
    file.seek(left_out)
    if left_out:
        left_out += len(file.readline(LONGEST_LINE))
    number = total = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        while not line.endswith(b"\n") and (rest := file.readline(LONGEST_LINE)):
            line = rest[-1:]  # of a line that is too long, keep only its last byte
        if not line.endswith(b"\n"):
            break
        kept.append((number, line))
        total += len(line)
        while total > LARGEST_METRICS:
            _, first = kept.popleft()
            total, left_out = total - len(first), left_out + len(first)
    if left_out:
        say(f"metrics.jsonl is very large: its first {left_out / 1e6:,.0f} MB are left out")
    return kept


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_step(value: Any) -> bool:
    """Return whether `value` can be the number of a step."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
