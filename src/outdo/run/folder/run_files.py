"""Read the files of a run folder to show them: only files inside the folder, and never more than fits in memory.

A page of a run can be sent by mail, and a browser shows the served page. So links in the folder to files elsewhere are
not followed: the page would contain their content.
"""

import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from outdo.utils.errors import RunFolderError

LARGEST_TABLE = 1_000_000
"""The maximum size of a recipe or a summary in bytes; a larger file is not read."""

LONGEST_LINE = 1_000_000
"""The maximum length of a line of `metrics.jsonl` in bytes; a longer line is left out."""

FARTHEST_BACK = 256_000_000
"""How many bytes of `metrics.jsonl` are read at most, counted from its end."""

MOST_LINES = 10_000
"""How many lines of metrics are kept at least; twice as many are thinned to half, all evaluations remain."""

TAIL = 64
"""How many bytes before the end of what is read are compared, to notice that a file was written anew."""

RENAMED = {"moved_right_way": "moved_as_intended"}
"""Metrics in the runs of earlier versions, and what they are called now."""

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
        table = parse(content.decode()) if len(content) <= LARGEST_TABLE else None
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, RunFolderError):
        table = None
    if not isinstance(table, dict):
        say(f"{name} cannot be read and is left out")
        return {}
    return table


class MetricsFile:
    """The metrics of a run folder. Each `read` reads only what was appended since the last one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "metrics.jsonl"
        self._forget(None)

    def _forget(self, identity: tuple[int, int] | None) -> None:
        self._identity, self._end, self._tail, self._number = identity, 0, b"", 0
        self._lines: list[dict[str, float]] = []
        self._problems: list[str] = []

    def read(self, say: Say) -> list[dict[str, float]]:
        """Return the finite numbers of each line that has a step, in the order of the file; of one step, together.

        An incomplete last line, which is still being written or which a crash cut off, is ignored. If the file is new
        or shorter, as after a resume, it is read from its beginning. Raises RunFolderError if the file exists and
        cannot be opened.
        """
        try:
            with file_inside(self._folder, self._path).open("rb") as file:
                self._read_on(file)
        except FileNotFoundError:
            self._forget(None)
        except OSError as error:
            raise RunFolderError(f"{self._path}: cannot be read: {error.strerror}") from error
        for problem in self._problems:
            say(problem)
        return self._lines

    def _read_on(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        file.seek(max(0, self._end - TAIL))
        if identity != self._identity or file.read(min(TAIL, self._end)) != self._tail:
            self._forget(identity)
            self._skip_to_the_last_bytes(file, status.st_size)
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                if not _skip_line(file):
                    break  # still being written
                line = b""
            self._number += 1
            self._add(line)
            self._end = file.tell()
        file.seek(max(0, self._end - TAIL))
        self._tail = file.read(min(TAIL, self._end))

    def _skip_to_the_last_bytes(self, file: BinaryIO, size: int) -> None:
        skipped = max(0, size - FARTHEST_BACK)
        file.seek(skipped)
        if skipped:
            _skip_line(file)
            self._problems.append(f"{self._path} is very large: its first {skipped / 1e6:,.0f} MB are left out")

    def _add(self, line: bytes) -> None:
        record = _record(line)
        if record is None:
            reason = "not a JSON object with a step" if line else "longer than the limit"
            self._problems.append(f"{self._path}, line {self._number}: {reason}; left out")
            return
        if self._lines and self._lines[-1]["step"] == record["step"]:  # other trainers log an evaluation by itself
            self._lines[-1] |= record
            return
        self._lines.append(record)
        if len(self._lines) >= 2 * MOST_LINES:
            last = len(self._lines) - 1
            is_kept = (i % 2 == 0 or i == last or any(name.startswith("eval/") for name in line)
                    for i, line in enumerate(self._lines))  # fmt: skip
            self._lines = [line for line, keep in zip(self._lines, is_kept, strict=True) if keep]


def _record(line: bytes) -> dict[str, float] | None:
    """Return the step and the finite numbers of a line, with six significant digits; None if it has no step."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or not is_step(parsed.get("step")):
        return None
    numbers = {name: number_or_none(value) for name, value in with_new_names(parsed).items() if name != "step"}
    return {"step": parsed["step"], **{name: float(f"{x:.6g}") for name, x in numbers.items() if x is not None}}


def with_new_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of `metrics.jsonl` under the names that its metrics have now."""
    return {RENAMED.get(name, name): value for name, value in record.items()}


def with_initial_evaluation(
    metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Add the evaluation before the first step, which is only in `summary.json`, to the metrics as step 0."""
    before = summary.get("before")
    if not before or not isinstance(before, Mapping):
        return [*metrics]
    return [{"step": 0, **{f"eval/{name}": value for name, value in before.items()}}, *metrics]


def _skip_line(file: BinaryIO) -> bool:
    """Read to the end of the line, and return whether it has one."""
    while rest := file.readline(LONGEST_LINE):
        if rest.endswith(b"\n"):
            return True
    return False


def is_step(value: Any) -> bool:
    """Return whether `value` can be the number of a step."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def number_or_none(value: Any) -> float | None:
    """Return a finite number, or None: JSON has no NaN and no infinity."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
