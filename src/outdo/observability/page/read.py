"""What is read of a run folder: only what lies in it, and never more than fits in memory.

A page may be mailed, and the live page is read in a browser: a link in the folder to a file elsewhere is not followed,
for its content would go with them.
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
"""Bytes of a recipe or a summary; a larger file is none."""

LONGEST_LINE = 1_000_000
"""Bytes of a step's metrics; a longer line is none."""

LARGEST_METRICS = 16_000_000
"""Bytes of metrics that are kept, those of the last steps: about 15,000 of them."""

FARTHEST_BACK = 256_000_000
"""Bytes of `metrics.jsonl` that are looked through, from its end."""

Say = Callable[[str], None]
"""Is told what is left out."""


def own(folder: Path, path: Path) -> Path:
    """`path` if it is an ordinary file in `folder`.

    Raises: FileNotFoundError if nothing is there; RunFolderError if it leads elsewhere, or is a pipe or a device.
    """
    real = path.resolve(strict=True)
    if not real.is_relative_to(folder.resolve()):
        raise RunFolderError(f"{path}: leads out of the run folder, and is not read")
    if not real.is_file():
        raise RunFolderError(f"{path}: is no file, and is not read")
    return real


def table(folder: Path, name: str, say: Say) -> dict[str, Any]:
    """A small file of the folder, JSON or TOML, that holds one table; an empty one where it is missing or damaged."""
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
    """The records of `metrics.jsonl` that have a step, oldest first; of a very long file, the last ones.

    A last line that is being written, or that a crash cut off, is not there yet. Raises RunFolderError if there is a
    file and it cannot be opened.
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
            say(f"metrics.jsonl, line {number}: not a JSON object, or too long a one; left out")
    found = [record for _, record in records if record is not None]
    if without := sum(not is_step(record.get("step")) for record in found):
        say(f"metrics.jsonl: {without} lines without a step are left out")
    return [record for record in found if is_step(record.get("step"))]


def _last_lines(file: BinaryIO, say: Say) -> deque[tuple[int, bytes]]:
    """Complete lines with their numbers, as many of the last ones as may be kept; one that is too long is empty."""
    kept: deque[tuple[int, bytes]] = deque()
    left_out = max(0, file.seek(0, os.SEEK_END) - FARTHEST_BACK)
    file.seek(left_out)
    if left_out:
        left_out += len(file.readline(LONGEST_LINE))
    number = total = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        while not line.endswith(b"\n") and (rest := file.readline(LONGEST_LINE)):
            line = rest[-1:]  # of what is too long, whether it ends
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
    """Whether it can be the number of a step."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
