"""The folder of a training of `outdo sft` or `outdo reward-model` until its model is complete: `OUT.unfinished`."""

import json
from pathlib import Path
from typing import Any

from outdo.utils.errors import UserError

SETTINGS = "settings.json"
"""The file of the command that has begun the training, and of its settings."""

UNFINISHED = ".unfinished"


def unfinished_folder(out: Path) -> Path:
    """Return the folder of the training that makes the model folder `out`."""
    target = out.resolve()
    return target.with_name(f"{target.name}{UNFINISHED}")


def model_folder(folder: Path) -> Path:
    """Return the folder of the model that is trained in `folder`, which may also be that folder itself."""
    is_training = folder.name.endswith(UNFINISHED) and folder.is_dir()
    return folder.with_name(folder.name.removesuffix(UNFINISHED)) if is_training else folder


def read_settings(out: Path) -> dict[str, Any]:
    """Return the settings of the unfinished training that makes `out`. Raises `UserError` if they cannot be read."""
    path = unfinished_folder(out) / SETTINGS
    if path.exists() and not path.is_file():  # reading a pipe may wait for ever
        raise UserError([f"{path}: expected a file, and this is a folder, a pipe or a device"])
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError([f"{path}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise UserError([f"{path}: not JSON: {error}"]) from None
    if not isinstance(settings, dict) or "command" not in settings:
        raise UserError([f"{path}: expected the settings of `outdo sft` or `outdo reward-model`"])
    return settings
