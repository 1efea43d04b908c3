"""Write files so that a crash or a failing disk leaves the old content or the new one, never a mix.

Everything that outdo writes and must read again is written through this module. Its operations of `os` (`open`,
`write`, `fsync`, `rename`, `mkdir`, `unlink`, `rmdir`) are therefore the whole list of what a disk can refuse. The
tests let each of them fail in turn, and kill the process at each of them.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outdo.utils.errors import RunFolderError


def write_json_atomically(path: Path, content: Any) -> None:
    """Replace `path` by `content` as JSON, NaN and infinities as null; a reader sees the old file or the new one."""
    write_text_atomically(path, json.dumps(finite(content), indent=2, ensure_ascii=False) + "\n")


def write_text_atomically(path: Path, content: str) -> None:
    """Replace `path` by `content` in UTF-8; a reader sees the old file or the new one, also after a crash."""
    write_bytes_atomically(path, content.encode("utf-8", "backslashreplace"))  # half a surrogate pair has no UTF-8


def write_lines_atomically(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace `path`, in a folder that is made if it is missing, by one JSON object on each line."""
    try:
        make_folder(path.parent)
    except OSError as error:
        raise RunFolderError(f"{path.parent}: cannot be created: {error.strerror}") from error
    text = (json.dumps(finite(line), ensure_ascii=False, default=str) for line in lines)
    write_text_atomically(path, "".join(f"{line}\n" for line in text))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in a file, one on each line. Raises `RunFolderError` if it is missing or damaged."""
    try:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: is damaged: {error}") from error
    if not all(isinstance(line, dict) for line in lines):
        raise RunFolderError(f"{path}: is damaged: a line is no JSON object")
    return lines


def remove(path: Path) -> None:
    """Delete a file or a folder. Raises `RunFolderError` if the disk refuses."""
    try:
        remove_tree(path)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be removed: {error.strerror}") from error


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; a reader sees the old file or the new one, also after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write_file(temporary, content)
        rename(temporary, path)
    except OSError as error:
        unchanged = "; the old content is unchanged" if path.exists() else ""
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}{unchanged}") from error


def finite(value: Any) -> Any:
    """Return `value` with None in place of every NaN and infinity, which JSON cannot hold."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
    return value


def make_folder(path: Path) -> None:
    """Create `path` and its missing parents, each on disk when this returns. An existing folder is left alone."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        os.mkdir(folder)
        sync(folder.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`, on disk when this returns. Not atomic: write to another name, then `rename`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        append(descriptor, content)
    finally:
        os.close(descriptor)


def append(descriptor: int, content: bytes) -> None:
    """Write all of `content` to an open file, on disk when this returns."""
    rest = memoryview(content)
    while rest:  # a disk that is nearly full accepts a part, and refuses only the next call
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
    """Remove a file, or a folder with its content, without following links."""
    if path.is_symlink() or not path.is_dir():
        os.unlink(path)
        return
    for inside in list(path.iterdir()):
        remove_tree(inside)
    os.rmdir(path)
