"""The folder where outdo keeps what it made or downloaded once, for all runs of a user."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def user_cache(name: str) -> Path:
    """Return the folder `outdo/NAME` in XDG_CACHE_HOME, or else in ~/.cache. It need not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outdo" / name


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Let other processes that want the same lock wait while a `with` block runs; it ends with the process too."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
