"""Reach a part of outdo that only a recipe or a command names: the folders of `outdo.extras`, each of which may be
deleted.

The core never imports them. It has their names in tables, as `"outdo.extras.vllm.engine:open_vllm"`, and imports one
here when it is asked for. So it is with `FAST_FORWARD` and `FAST_SAMPLING`, without which a run is slower.
"""

import importlib
from importlib.util import find_spec
from typing import Any

from outdo.utils.errors import UserError
from outdo.utils.imports import split

PACKAGE = "outdo.extras"
FAST_FORWARD, FAST_SAMPLING = "outdo.models.fast", "outdo.rollouts.fast"
MISSING = "this installation of outdo does not have"
WITH_DEPENDENCIES = frozenset({"agents", "gym", "hub", "ray"})
"""The extras whose optional dependencies are a group of the same name."""


def load_extra(spec: str, key: str) -> Any:
    """Import the object that `"module:object"` names, in an extra or in the core.

    `key` is the setting or the command that asks for it. Raises `UserError`, one sentence, if the extra or another one
    that it needs was deleted, or if a package that it needs is not installed.
    """
    module, name = split(spec)
    if mistake := missing_extra(spec, key):
        raise UserError([mistake])
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if mistake := missing_extra(str(error.name), key):
            raise UserError([mistake]) from error
        for folder in (FAST_FORWARD, FAST_SAMPLING):
            if str(error.name).startswith(folder):
                raise UserError([f"{key}: needs {folder}, which {MISSING}"]) from error
        package, extra = str(error.name).partition(".")[0], extra_of(spec)
        if extra is None or package == PACKAGE.partition(".")[0]:
            raise
        how = f"pip install 'outdo[{extra}]'" if extra in WITH_DEPENDENCIES else "install it"
        raise UserError([f"{key}: needs the package {package}: {how}"]) from error


def fast(spec: str) -> Any:
    """Return what `"module:object"` names in `FAST_FORWARD` or `FAST_SAMPLING`; None if that folder was deleted."""
    module, name = split(spec)
    return None if find_spec(module.rpartition(".")[0]) is None else getattr(importlib.import_module(module), name)


def without(folder: str) -> str:
    """Return the reason for a slower way, where a folder of faster ones was deleted."""
    return f"{MISSING} {folder}"


def missing_extra(spec: str, key: str) -> str | None:
    """Return the sentence about an extra that was deleted; None if it is there. Nothing of it is imported."""
    extra = extra_of(spec)
    if extra is None or (find_spec(PACKAGE) is not None and find_spec(f"{PACKAGE}.{extra}") is not None):
        return None
    return f"{key}: needs {PACKAGE}.{extra}, which {MISSING}"


def extra_of(spec: str) -> str | None:
    """Return the folder of `outdo.extras` that has the code of `spec`; None for code of the core, or of a user."""
    inside = spec.removeprefix(f"{PACKAGE}.")
    return None if inside == spec else inside.partition(":")[0].partition(".")[0]
