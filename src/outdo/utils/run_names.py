"""Where a run is, by its name."""

from pathlib import Path

RUNS = Path("runs")
"""The folder of runs that have a name and not a path."""


def run_folder(run: str) -> Path:
    """Return the folder of `run`: a path if it has a slash, else the folder of this name in `runs/`."""
    return Path(run) if "/" in run else RUNS / run
