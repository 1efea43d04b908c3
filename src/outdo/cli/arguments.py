"""What can be wrong with the folders that a command is given, as one sentence each."""

from pathlib import Path

from outdo.utils.errors import did_you_mean


def no_run(run: Path) -> str | None:
    """Why there is nothing to show in a folder, if there is nothing."""
    if any((run / name).exists() for name in ("recipe.toml", "metrics.jsonl", "tokens")):
        return None
    if run.is_dir():
        return f"{run}: no run is there (it has neither recipe.toml nor metrics.jsonl nor tokens)"
    if run.exists():
        return f"{run}: expected a run folder, and this is a file"
    return f"{run}: no such folder{_near(run)}"


def no_place(file: Path) -> str | None:
    """Why a file cannot be written where it is to be, if it cannot."""
    if file.is_dir():
        return f"{file}: expected the name of a file, and this is a folder"
    if not file.parent.is_dir():
        return f"{file}: cannot be written, for there is no folder {file.parent}{_near(file.parent)}"
    return None


def _near(folder: Path) -> str:
    """The folder beside it whose name is most like its own, as a question."""
    if not folder.parent.is_dir():
        return ""
    return did_you_mean(folder.name, [path.name for path in folder.parent.iterdir() if path.is_dir()])
