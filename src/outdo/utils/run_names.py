"""Where a run is, by its name."""

import os
from pathlib import Path

RUNS = Path("runs")
"""The folder of runs that have a name and not a path."""


def run_folder(run: str) -> Path:
    """Return the folder of `run`: a path if it has a slash, else the folder of this name in `runs/`."""
    return Path(run) if "/" in run else RUNS / run


def folder_name(path: str | Path) -> str:
    """Return the name of a folder, also of one that is given as `.`, or of a model on the Hub."""
    return Path(os.path.abspath(path)).name
