"""The run folder: one process at a time, one line of metrics for each step, and how a run differs from a saved one.

recipe.toml         the resolved recipe             tokens/         what happened to every token
environment.json    versions, seed, command         checkpoints/    see `outdo.storage.checkpoint`
metrics.jsonl       one JSON object for each step   summary.json    before and after
lock                who runs here now               report.html     the page
"""

import fcntl
import json
import math
import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from outdo.storage import atomic
from outdo.utils.errors import RunFolderError


class RunFolder:
    """A run's folder, created where it is missing, and held by this process alone until `close()` or its end.

        with RunFolder(Path("runs/add")) as folder:
            folder.append_metrics(1, {"reward": 0.25})

    Raises: RunFolderError naming the process and the host that hold the folder, or why it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.notice: str | None = None
        """What the user should know about how the last run here ended."""
        try:
            atomic.make_folder(path)
            lock, self.notice = _acquire(path / "lock")
            self._lock: int | None = lock
        except OSError as error:
            raise RunFolderError(
                f"{error.filename or path}: cannot be used as a run folder: {error.strerror}"
            ) from error
        try:
            self._keep_metrics(_complete_lines(self.metrics))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the next process in. Closing twice is harmless."""
        lock, self._lock = self._lock, None
        if lock in _held:  # not so in a forked child
            _held.discard(lock)
            os.ftruncate(lock, 0)  # an empty lock file says that the run ended in order
            os.close(lock)

    def append_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the line of `step` to `metrics.jsonl`, on disk when this returns; NaN and infinities become null.

        Raises: RunFolderError when `step` is not later than the last one written, or the disk refuses.
        """
        if self._last_step is not None and step <= self._last_step:
            raise RunFolderError(
                f"{self.metrics}: step {step} cannot follow step {self._last_step}; rewind to the checkpoint first"
            )
        line = json.dumps(_finite({"step": step, **metrics} | {"step": step}))
        try:
            descriptor = os.open(self.metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                _append_or_undo(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise RunFolderError(f"{self.metrics}: step {step} was not written: {error.strerror}") from error
        self._last_step = step

    def rewind(self, step: int) -> None:
        """Drop the metrics of all steps after `step`, so that a run resumed there writes each step once."""
        self._keep_metrics([line for line in _complete_lines(self.metrics) if _step_of(line) <= step])

    def _keep_metrics(self, lines: Sequence[bytes]) -> None:
        """Make `lines` all there is in `metrics.jsonl`."""
        content = b"".join(line + b"\n" for line in lines)
        if self.metrics.exists() and self.metrics.stat().st_size != len(content):
            write_bytes_atomically(self.metrics, content)
        self._last_step = max(map(_step_of, lines), default=None)


# -------------------------------------------------------------------------------------------------- files and metrics


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete records of a `metrics.jsonl`, oldest first; empty where there is no file.

    A last line that a crash cut off is left out. A line that is damaged otherwise is left out with a warning.
    """
    records = []
    for number, line in enumerate(_complete_lines(path), 1):
        record = _parsed(line)
        if record is None:
            warnings.warn(f"{path}, line {number}: not a JSON object; left out", stacklevel=2)
        else:
            records.append(record)
    return records


def write_json_atomically(path: Path, content: Any) -> None:
    """Replace `path` by `content` as JSON, NaN and infinities as null; a reader sees the old file or the new one."""
    write_text_atomically(path, json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n")


def write_text_atomically(path: Path, content: str) -> None:
    """Replace `path` by `content` in UTF-8; a reader sees the old file or the new one, also after a crash."""
    write_bytes_atomically(path, content.encode("utf-8", "backslashreplace"))  # half of a surrogate pair has no UTF-8


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; a reader sees the old file or the new one, also after a crash."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        atomic.write_file(aside, content)
        atomic.rename(aside, path)
    except OSError as error:
        stays = ", the old content stays" if path.exists() else ""
        raise RunFolderError(f"{path}: was not written{stays}: {error.strerror}") from error


def _complete_lines(path: Path) -> list[bytes]:
    """Lines that end: what follows the last newline is the beginning of one that a crash cut off."""
    try:
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _step_of(line: bytes) -> int:
    """The step of a record, 0 for a damaged line: it is kept, and read around."""
    step = (_parsed(line) or {}).get("step")
    return step if isinstance(step, int) else 0


def _append_or_undo(descriptor: int, content: bytes) -> None:
    """Append all of `content` or nothing: the next line must not continue half of this one."""
    size = os.fstat(descriptor).st_size
    try:
        atomic.append(descriptor, content)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _finite(value: Any) -> Any:
    """`value` with None for what JSON has no number for."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


# ---------------------------------------------------------------------------------------------------------- the lock

_held: set[int] = set()
"""Open lock files of this process."""


def _leave_locks_to_the_parent() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


# A forked worker that outlives a killed run would otherwise keep the run's folder locked.
os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


def _acquire(path: Path) -> tuple[int, str | None]:
    """Lock `path` and write down who holds it. Also says whose lock was taken over: the kernel frees a dead one's."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = os.pread(descriptor, 4096, 0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": timestamp()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 4096, 0)
        os.close(descriptor)
        raise RunFolderError(
            f"{path.parent}: in use by {_who(holder)}. Wait for it, stop it, or choose another run folder."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    _held.add(descriptor)
    return descriptor, f"{path.parent}: {_who(before)} ended without closing it; taken over." if before else None


def _who(holder: bytes) -> str:
    known = _parsed(holder) or {}
    return f"process {known.get('pid', '?')} on {known.get('host', '?')} since {known.get('started', '?')}"


# ---------------------------------------------------------------------------------------------- what a run is made of


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
