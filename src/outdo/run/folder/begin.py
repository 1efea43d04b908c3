"""Whether a folder holds a run, and whether a new run may begin there."""

import os
from pathlib import Path

from outdo.run.folder.run_folder import read_metrics

WRITTEN = (
    "recipe.toml",
    "environment.json",
    "start.txt",
    "metrics.jsonl",
    "summary.json",
    "failure.json",
    "report.html",
    "checkpoints",
    "tokens",
    "held_out",
    "reads",
    "refused",
    "trackers",
    "tensorboard",
    "profile",
)
"""What a run writes into its folder, besides its history: it would overwrite, continue or remove what is there."""


def holds_run(folder: Path) -> bool:
    """Return whether a run was begun in a folder. A recipe alone may be the user's own."""
    # A run writes its history first: if the recipe is that of a run, both are there.
    return (folder / "history.jsonl").is_file() and (folder / "recipe.toml").is_file()


def why_no_run(folder: Path) -> str | None:
    """Return why no run can be continued in a folder, if there is none."""
    if holds_run(folder):
        return None
    if (folder / "recipe.toml").is_file():
        return (
            f"{folder}: no run is there: it has a recipe.toml, but no history.jsonl, which every run has; "
            f"`outdo train {folder / 'recipe.toml'}` begins a run"
        )
    return f"{folder}: no run is there (it has no recipe.toml)"


def why_taken(folder: Path) -> str | None:
    """Return why a new run cannot begin in a folder, if it cannot.

    It cannot be made or written, a run is there, or a file that a run would change.
    """
    if problem := _why_not_writable(folder):
        return problem
    if holds_run(folder):
        return f"{folder} holds a run already; `outdo resume {folder}` continues it"
    there = [name for name in WRITTEN if _has_content(folder / name)]
    if not _may_be_continued(folder / "history.jsonl"):
        there.append("history.jsonl")
    if not there:
        return None
    return (
        f"{folder}: no run is there, and a run writes {', '.join(there)}, which exists already; "
        "choose another run folder (run=NAME)"
    )


def _why_not_writable(folder: Path) -> str | None:
    """Return why a run folder cannot be made, or written if it is there; None if nothing speaks against it."""
    try:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    except OSError as error:  # no permission, or a name that is too long
        return f"{folder}: cannot be used as a run folder: {error.strerror}; choose another one (run=PATH)"
    if not there.is_dir():
        return f"{folder}: cannot be used as a run folder: {there} is a file; choose another one (run=PATH)"
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        return f"{folder}: cannot be used as a run folder: {there} cannot be written; choose another one (run=PATH)"
    return None


def _has_content(path: Path) -> bool:
    """Return whether a file or a folder is there that is not empty: a start that failed leaves an empty `tokens`."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and path.stat().st_size > 0


def _may_be_continued(history: Path) -> bool:
    """Return whether a history is missing, or is that of a start that was killed before it wrote the recipe."""
    if not history.exists():
        return True
    left_out: list[str] = []
    starts = read_metrics(history, report=left_out.append) if history.is_file() else [{}]
    return not left_out and all("after_step" in start for start in starts)
