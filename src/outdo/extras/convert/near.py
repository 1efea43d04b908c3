"""The small files of text near a script, which it may read, source or import."""

import os
from collections.abc import Iterator
from pathlib import Path

SHELL = (".sh", ".bash", ".env", ".slurm", ".sbatch", ".conf")
ENDS = (*SHELL, ".py", ".yaml", ".yml", ".json", ".toml", ".txt", ".jinja", ".md")
LARGEST, MOST_FILES, DEEPEST = 200_000, 400, 3
"""Bytes of a file, files, and levels of folders that a script gets a copy of."""


def near_files(path: Path) -> dict[Path, str]:
    """Return the texts beside a script, in the user's folder, and in the folder around that of the script.

    All paths are absolute, and those beside the script come first.
    """
    here = path.absolute().parent
    near = [*_texts(here, DEEPEST), *_texts(Path.cwd(), DEEPEST), *_texts(here.parent, DEEPEST - 1)]
    texts = {}
    for file in list(dict.fromkeys(near))[:MOST_FILES]:
        if file.is_file() and file.stat().st_size <= LARGEST:
            texts[file] = file.read_text(encoding="utf-8", errors="replace")
    return texts


def _texts(folder: Path, deepest: int) -> Iterator[Path]:
    if folder in (Path("/"), Path.home(), Path("/tmp")):
        deepest = 1
    for root, folders, names in os.walk(folder):
        depth = 1 + len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < deepest else []
        yield from (Path(root, name) for name in sorted(names) if name.endswith(ENDS))
