"""Describe what decides a run besides its recipe: versions, device, code, command and commit, without secrets."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from outdo.utils.secrets import HIDDEN, has_secret_name, redact

PACKAGES = ("outdo", "torch", "transformers", "tokenizers", "safetensors", "numpy", "peft")
"""The packages that decide the bits of a result."""


def describe_environment(
    *, seed: int, threads: int, device: str, hardware: str = "", world_size: int = 1
) -> dict[str, Any]:
    """Return the content of `environment.json`. It holds no environment variables and no secrets."""
    return {
        **versions(),
        "platform": platform.platform(),
        "device": device,
        "hardware": hardware,
        "threads": threads,
        "world_size": world_size,
        "seed": seed,
        "command": without_secrets(sys.argv),
        "git_commit": _git_commit(),
        "started": timestamp(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that decide a result, and the kind of the machine."""
    packages = {name: version_of(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, "machine": platform.machine()}


def saved_revisions(folder: Path) -> dict[str, str]:
    """Return the commits of models and data sets of the Hub that a run was started with; empty if it has none."""
    file = folder / "environment.json"
    return dict(json.loads(file.read_bytes()).get("revisions", {})) if file.is_file() else {}


def code_hashes(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path."""
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def variable_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each environment variable that is set, without those whose names are those of secrets."""
    values = {name: os.environ.get(name) for name in sorted(names) if not has_secret_name(name)}
    return {name: hashlib.sha256(os.fsencode(value)).hexdigest() for name, value in values.items() if value is not None}


def folder_hash(folder: Path) -> str:
    """Return the SHA-256 over the names and contents of the files in a folder, without its subfolders."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            digest.update(f"{path.name}: {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments with `***` for the value of `hub.token=...`, `--api-key ...` and the like.

    What looks like a secret is hidden wherever it is.
    """
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_secret = has_secret_name(name)
        shown.append(HIDDEN if hide_next else f"{name}={HIDDEN}" if is_secret and equals else redact(argument))
        hide_next = is_secret and not equals and name.startswith("-")
    return shown


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def timestamp() -> str:
    """Return the time now, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git_commit() -> str | None:
    """Return the commit of the current folder; None outside a repository or without git."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
