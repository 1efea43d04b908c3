"""Writing files so that a crash or a failing disk leaves the old content or the new one, never a mix.

Whatever outdo writes itself and must find again is written through this module. The operations of `os` it uses (`open`,
`write`, `fsync`, `rename`, `mkdir`, `unlink`, `rmdir`) are thus the whole list of what the disk can refuse, and the
tests let each of them fail, and kill the process at each of them, in turn.
"""

import os
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create `path` and its missing parents, each on disk when this returns. A folder that exists is left alone."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        os.mkdir(folder)
        sync(folder.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`, on disk when this returns. Not atomic: write aside, then `rename`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        append(descriptor, content)
    finally:
        os.close(descriptor)


def append(descriptor: int, content: bytes) -> None:
    """Write all of `content` to an open file, on disk when this returns."""
    rest = memoryview(content)
    while rest:  # a disk that is nearly full takes a part and refuses only the next call
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename within one folder, atomically, on disk when this returns."""
    os.rename(source, target)
    sync(target.parent)


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder and all in it, without following links."""
    if path.is_symlink() or not path.is_dir():
        os.unlink(path)
        return
    for inside in list(path.iterdir()):
        remove_tree(inside)
    os.rmdir(path)
