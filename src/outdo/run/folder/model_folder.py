"""Write a new model folder: whole, or not at all."""

import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from outdo.utils import atomic
from outdo.utils.errors import RunFolderError


def is_refused(error: BaseException) -> bool:
    """Return whether an error while a model is written is one of the disk: of Python, safetensors or tokenizers."""
    return isinstance(error, OSError | SafetensorError) or type(error) is Exception


def save_model_folder(folder: Path, write_model: Callable[[Path], None]) -> None:
    """Make `folder`, which is missing or empty, from what `write_model(path)` writes into a folder beside it.

    The folder beside it, `.NAME.unfinished`, is renamed when everything in it is on disk, so that a process that is
    killed while it writes leaves no folder that looks like a model. Raises `RunFolderError` if that fails. A model that
    is written but cannot be renamed stays beside `folder`, and the error names it.
    """
    target = folder.resolve()
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        if unfinished.exists():  # of a process that was killed
            atomic.remove_tree(unfinished)
        atomic.make_folder(unfinished)
        write_model(unfinished)
        usual = stat.S_IMODE(unfinished.stat().st_mode) & 0o666
        for path in (*unfinished.rglob("*"), unfinished):
            if path.is_file():
                path.chmod(usual)  # safetensors writes files for their owner alone
            atomic.sync(path)
    except Exception as error:
        if not is_refused(error):
            raise
        with suppress(OSError):
            atomic.remove_tree(unfinished)
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunFolderError(f"{folder}: cannot be written: {reason}") from error
    try:
        atomic.rename(unfinished, target)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror}; the model is in {unfinished}") from error
