"""Weights that an engine reads from files: a folder for each delivery, in memory or where several machines see it.

A delivery to another machine is written aside, synced, and renamed to its version. So nobody reads a half-written one,
and no path ever has other content than before. The one before it stays until the next is written: then it is proven.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from outdo.utils.atomic import rename, sync
from outdo.utils.deadline import within
from outdo.utils.errors import EngineError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "outdo-engine-"
SECONDS = 600.0
"""How long a file may take: of a few GiB at most, on a file system that may be on another machine."""
_LOCK = "lock"

Part = Callable[[Path], object]
"""Writes one or more files into a folder."""


class WeightsFolder:
    """A folder of this process in `parent`, which the machines share; unset, in shared memory, or on disk.

    On disk it is if shared memory has no room for so many bytes as are `needed`. The folders of processes of this
    machine that were killed are removed: they are those whose lock nobody holds.
    """

    def __init__(self, needed: int = 0, parent: Path | None = None) -> None:
        # A lock tells nothing about other machines on every file system.
        machine = "" if parent is None else f"@{os.uname().nodename}"
        if parent is None:
            room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
            parent = SHARED_MEMORY if room else Path(tempfile.gettempdir())
        _remove_abandoned(parent, f"{PREFIX}*{machine}")
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, suffix=machine, dir=parent))
        self._lock = (self.path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._number = 0
        self._newest: Path | None = None
        self.close = weakref.finalize(self, _remove, self.path, self._lock)

    def new(self) -> Path:
        """Return an empty folder that no delivery had before."""
        self._number += 1
        folder = self.path / str(self._number)
        folder.mkdir()
        return folder

    def publish(self, version: int, parts: Iterable[Part]) -> Path:
        """Return the folder of a delivery, with all that its parts have written, and on disk.

        The delivery before it is kept, and all earlier ones are removed.

        Raises: EngineError if the folder cannot be written, or a part takes longer than `SECONDS`.
        """
        self._number += 1
        folder = self.path / f"{version}-{self._number}"
        aside = self.path / f".{folder.name}"
        try:
            within(SECONDS, lambda: self._begin(aside))
            for part in parts:
                within(SECONDS, lambda part=part: _write(part, aside))
            within(SECONDS, lambda: rename(aside, folder))
        except TimeoutError:
            raise EngineError(f"{self.path}: weights cannot be written: no result after {SECONDS:g} s") from None
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{self.path}: weights cannot be written: {error}") from error
        self._newest = folder
        return folder

    def _begin(self, aside: Path) -> None:
        self.drop_others(self._newest)
        aside.mkdir()

    def drop_others(self, folder: Path | None) -> None:
        """Remove all deliveries except the one in `folder`."""
        for other in self.path.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)


def _write(part: Part, folder: Path) -> None:
    """Let a part write its files; they are on disk when this returns."""
    before = set(folder.iterdir())
    part(folder)
    for file in set(folder.iterdir()) - before:
        sync(file)
    sync(folder)


def _remove(path: Path, lock: Any) -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.close()


def _remove_abandoned(parent: Path, pattern: str) -> None:
    for folder in parent.glob(pattern):
        with contextlib.suppress(OSError), (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
