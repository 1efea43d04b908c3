"""SmolLM2-135M-Instruct, the real model that tests use: 134,515,008 weights of Llama, in a GGUF file of 98 MB (Q4_1).

A test that needs it takes one of the two fixtures, which stand in tests/conftest.py, with no import:

    def test_something_of_a_real_model(smollm2: Path):          # a model folder: config.json, model.safetensors, ...
    def test_something_of_a_gguf_file(smollm2_gguf: Path):      # the file itself

Nothing may be written into the folder. The model loads in about a second, and needs 0.6 GB; its gradients as much
again, and AdamW twice as much. Give whole runs a few steps of 2 x 4 x 16 tokens, and mark what takes minutes `long`.

The quickstart's own function downloads it once, into ~/.cache/outdo-tests (or into XDG_CACHE_HOME). `OUTDO_SMOLLM2`
names a .gguf file or a model folder that is used instead. Without any of them the test is skipped, and fails where
`CI_NEEDS_MODEL` is 1.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from outdo.extras.quickstart.smollm2 import model_file
from outdo.models.gguf_folder import converted
from outdo.run.display import Display
from outdo.utils.errors import ModelError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "outdo-tests"
"""Where the file and its folder are kept: set when this is imported, before a test gives outdo another cache."""


def gguf_file() -> Path:
    """The GGUF file. Without it the test is skipped, or fails."""
    named = os.environ.get("OUTDO_SMOLLM2")
    if named:
        if not named.endswith(".gguf"):
            _unavailable(f"OUTDO_SMOLLM2 is {named}, which is no .gguf file")
        return Path(named)
    return _or_unavailable()


def model_folder() -> Path:
    """The folder of the model, in which nothing may be written. Without it the test is skipped, or fails."""
    named = os.environ.get("OUTDO_SMOLLM2")
    if named and not named.endswith(".gguf"):
        return Path(named)
    with caching():
        return converted(gguf_file())


@contextmanager
def caching() -> Iterator[None]:
    """Let outdo keep what it makes of the model where the tests keep it, while a `with` block runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        yield


@cache
def _or_unavailable() -> Path:
    try:
        with caching():
            return model_file(Display())
    except ModelError as error:
        return _unavailable(str(error))


def _unavailable(reason: str) -> Path:
    explained = f"no SmolLM2, the real model of the tests: {reason} (OUTDO_SMOLLM2 names a .gguf file or a folder)"
    (pytest.fail if os.environ.get("CI_NEEDS_MODEL") == "1" else pytest.skip)(explained)
