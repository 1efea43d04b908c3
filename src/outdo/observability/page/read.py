"""Read the files of a run folder: only files inside the folder, and never more than fits in memory.

A page can be sent by mail, and a browser shows the served page. So links in the folder to files elsewhere are not
followed: the page would contain their content.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outdo.storage.run_folder import ReadLimits, read_metrics
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


def file_inside(folder: Path, path: Path) -> Path:
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
        with file_inside(folder, folder / name).open("rb") as file:
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
    try:
        path = file_inside(folder, folder / "metrics.jsonl")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{folder / 'metrics.jsonl'}: cannot be read: {error.strerror}") from error
    limits = ReadLimits(line=LONGEST_LINE, kept=LARGEST_METRICS, back=FARTHEST_BACK)
    records = read_metrics(path, limits=limits, report=say)
    if without := sum(not is_step(record.get("step")) for record in records):
        say(f"metrics.jsonl: {without} lines without a step are left out")
    return [record for record in records if is_step(record.get("step"))]


def is_step(value: Any) -> bool:
    """Return whether `value` can be the number of a step."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
