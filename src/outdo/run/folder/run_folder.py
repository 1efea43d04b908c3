"""The folder of a run: its lock, and its metrics, one line for each step.

recipe.toml         the resolved recipe             tokens/         what happened to every token
environment.json    versions, seed, command         checkpoints/    see `outdo.run.checkpoints.checkpoint`
history.jsonl       the same for each start         summary.json    before and after
start.txt           the notes before each start
metrics.jsonl       one JSON object for each step   report.html     the page
lock                the process that runs here      failure.json    the error that ended the run
held_out/           the answers of each evaluation
reads/              what answers read of their questions
"""

import fcntl
import json
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from outdo.run.folder.provenance import timestamp
from outdo.run.folder.run_files import with_new_names
from outdo.utils import atomic
from outdo.utils.errors import OutdoError, RunFolderError
from outdo.utils.secrets import redact

CHUNK = 1_000_000
"""Bytes that are read at a time of a line that is longer than the limit."""


class RunFolder:
    """The folder of a run, created if it is missing, and locked by this process until `close()` or its end.

        with RunFolder(Path("runs/add")) as folder:
            folder.append_metrics(1, {"reward": 0.25})

    Raises: RunFolderError naming the process and the host that hold the lock, or why the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"
        self.environment = path / "environment.json"
        self.history = path / "history.jsonl"
        self.start = path / "start.txt"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.failure = path / "failure.json"
        self.notice: str | None = None
        """What the user should know about how the last run here ended."""
        self._check_files()
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

    def _check_files(self) -> None:
        """Raise `RunFolderError` if a file of the folder is a pipe, whose reading may never end, or a device."""
        files = (self.recipe, self.environment, self.history, self.start, self.metrics, self.summary)
        files += (self.failure, self.path / "lock")
        if other := [str(file) for file in files if file.exists() and not file.is_file()]:
            raise RunFolderError(f"{', '.join(other)}: expected a file, and this is a folder, a pipe or a device")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. Closing twice is harmless."""
        lock, self._lock = self._lock, None
        if lock in _held:  # not so in a forked child
            _held.discard(lock)
            os.ftruncate(lock, 0)  # an empty lock file means that the run ended in order
            os.close(lock)

    def append_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the line of `step` to `metrics.jsonl`, on disk when this returns; NaN and infinities become null.

        Raises: RunFolderError when `step` is not later than the last one written, or the disk refuses.
        """
        if self._last_step is not None and step <= self._last_step:
            raise RunFolderError(
                f"{self.metrics}: step {step} cannot follow step {self._last_step}; rewind to the checkpoint first"
            )
        try:
            _append_line(self.metrics, {"step": step, **metrics} | {"step": step})
        except OSError as error:
            raise RunFolderError(f"{self.metrics}: step {step} was not written: {error.strerror}") from error
        self._last_step = step

    def amend_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add `metrics` to the line of `step`, which is the last one."""
        lines = _complete_lines(self.metrics)
        last = (_parsed(lines.pop()) if lines and _step_of(lines[-1]) == step else None) or {}
        self._keep_metrics(lines)
        self.append_metrics(step, {**last, **metrics})

    def append_history(self, entry: Mapping[str, Any]) -> None:
        """Append how the run was started or resumed to `history.jsonl`: the step, the environment, and what changed."""
        try:
            if not _ends_with_newline(self.history):  # a crash cut the last line off
                whole = _complete_lines(self.history)
                atomic.write_bytes_atomically(self.history, b"".join(line + b"\n" for line in whole))
            _append_line(self.history, entry)
        except OSError as error:
            raise RunFolderError(f"{self.history}: cannot be written: {error.strerror}") from error

    def append_start(self, step: int, lines: Sequence[str]) -> None:
        """Append to `start.txt` what a start of the run says before the step after `step`; a blank line ends it."""
        text = "\n".join([f"{timestamp()}, before step {step + 1}", *map(redact, lines), "", ""])
        try:
            _append(self.start, text.encode())
        except OSError as error:
            raise RunFolderError(f"{self.start}: cannot be written: {error.strerror}") from error

    def keep_failure(self, error: BaseException) -> None:
        """Write the error that ends the run to `failure.json`. Raises `RunFolderError` if the disk refuses."""
        known = isinstance(error, OutdoError)  # its message is a sentence for the user
        message = str(error) if known else f"{type(error).__name__}: {error}"
        atomic.write_json_atomically(self.failure, {"message": redact(message), "time": timestamp()})

    def forget_failure(self) -> None:
        """Remove the error of an earlier start: the run goes on. Raises `RunFolderError` if the disk refuses."""
        if self.failure.exists():
            atomic.remove(self.failure)

    def rewind(self, step: int) -> list[int]:
        """Drop the metrics of all steps after `step`, so that a run resumed there writes each step once.

        Returns the steps up to `step` whose metrics are missing: somebody has deleted them.
        """
        lines = [line for line in _complete_lines(self.metrics) if _step_of(line) <= step]
        self._keep_metrics(lines)
        return sorted(set(range(1, step + 1)) - set(map(_step_of, lines)))

    def _keep_metrics(self, lines: Sequence[bytes]) -> None:
        """Replace the content of `metrics.jsonl` by `lines`."""
        content = b"".join(line + b"\n" for line in lines)
        if self.metrics.exists() and self.metrics.stat().st_size != len(content):
            atomic.write_bytes_atomically(self.metrics, content)
        self._last_step = max(map(_step_of, lines), default=None)


# ----------------------------------------------------------------------------------------------------------- metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much of a `metrics.jsonl` is read, in bytes; None is no limit."""

    line: int | None = None  # a longer line is left out
    back: int | None = None  # from the end of the file: what is before is not read


def read_metrics(
    path: Path, *, limits: ReadLimits | None = None, report: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """Return the records of a `metrics.jsonl`, oldest first; nothing if there is no file.

    A last line without an end, which is being written or which a crash cut off, is left out. Every other line that is
    left out, and why, is a sentence to `report`, or else a warning.

    Raises: RunFolderError if the file cannot be read.
    """
    messages: list[str] = []
    records = []
    try:
        with path.open("rb") as file:
            for number, line in _last_lines(file, limits or ReadLimits(), messages):
                record = _parsed(line)
                if record is not None:
                    records.append(with_new_names(record))
                else:
                    reason = "not a JSON object" if line else "longer than the limit"
                    messages.append(f"{path}, line {number}: {reason}; left out")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    for message in messages:
        if report:
            report(message)
        else:
            warnings.warn(message, stacklevel=2)
    return records


def _last_lines(file: BinaryIO, limits: ReadLimits, messages: list[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the last complete lines with their numbers; a line that is too long is empty."""
    size = file.seek(0, os.SEEK_END)
    left_out = 0 if limits.back is None else max(0, size - limits.back)
    file.seek(left_out)
    if left_out:
        left_out += len(file.readline(limits.line or -1))
    if left_out:
        messages.append(f"{file.name} is very large: its first {left_out / 1e6:,.0f} MB are left out")
    number = 0
    while line := file.readline(limits.line or -1):
        number += 1
        if not line.endswith(b"\n"):  # longer than the limit, or without an end
            if not _skip_line(file):
                break
            line = b""
        yield number, line


def _skip_line(file: BinaryIO) -> bool:
    """Read to the end of the line, and return whether it has one."""
    while rest := file.readline(CHUNK):
        if rest.endswith(b"\n"):
            return True
    return False


def _complete_lines(path: Path) -> list[bytes]:
    """Return the lines that end: what follows the last newline is a line that a crash cut off."""
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
    """Return the step of a record; 0 for a damaged line, which is kept, and which readers leave out."""
    step = (_parsed(line) or {}).get("step")
    return step if isinstance(step, int) else 0


def _append_line(path: Path, record: Mapping[str, Any]) -> None:
    _append(path, json.dumps(atomic.finite(record)).encode() + b"\n")


def _append(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        _append_or_undo(descriptor, content)
    finally:
        os.close(descriptor)


def _ends_with_newline(path: Path) -> bool:
    """Return whether a file ends with a newline, or has no content."""
    return not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")


def _append_or_undo(descriptor: int, content: bytes) -> None:
    """Append all of `content` or nothing: the next line must not continue half of this one."""
    size = os.fstat(descriptor).st_size
    try:
        atomic.append(descriptor, content)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


# ---------------------------------------------------------------------------------------------------------- the lock

_held: set[int] = set()
"""Open lock files of this process."""


def is_alive(folder: Path) -> bool:
    """Return whether a process holds the lock of a run folder, without delaying one that wants to take it.

    An empty lock file belongs to a run that ended in order. If the process that the file names no longer exists, the
    lock is free. Only otherwise is the lock itself tried, for the time of two system calls.
    """
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        holder = os.pread(descriptor, 4096, 0)
        if not holder or not _may_exist(holder):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)  # which also releases the lock, if this process got it
    return False


def _may_exist(holder: bytes) -> bool:
    """Return whether the process named in a lock file exists, or is on another machine."""
    try:
        known = json.loads(holder)
        if known["host"] == socket.gethostname():
            os.kill(int(known["pid"]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, TypeError, KeyError, OverflowError):
        return True
    return True


def _leave_locks_to_the_parent() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


# A forked worker that outlives a killed run would otherwise keep the run's folder locked.
os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


def _acquire(path: Path) -> tuple[int, str | None]:
    """Lock `path`, write into it which process holds it, and return its descriptor.

    Also returns a notice if the process that held it before ended without closing it: the kernel frees its lock.
    """
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
