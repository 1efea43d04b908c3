"""Packages that seem installed: their metadata, in a folder that comes first on the path."""

from pathlib import Path

import pytest


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let packages seem installed in these versions; a comma and a requirement may follow a version."""
    for name, version in versions.items():
        number, *needs = version.split(",", 1)
        about = folder / f"{name}-{number}.dist-info"
        about.mkdir()
        lines = [f"Name: {name}", f"Version: {number}", *(f"Requires-Dist: {each}" for each in needs)]
        (about / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    monkeypatch.syspath_prepend(folder)
