"""Whether a folder holds a run."""

from pathlib import Path


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
