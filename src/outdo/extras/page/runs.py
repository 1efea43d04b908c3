"""Collect several runs for one page: each of them, the settings that differ, and which differ only in the seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.extras.page.collect import DEFAULT_VIEW, PageData, View, collect_run, redacted
from outdo.run.folder import run_files
from outdo.utils.text import dotted, text_or_json

MOST_RUNS = 10
"""The maximum number of runs on a page."""

MOST_DIFFERENCES = 12
"""How many settings that differ a page names, in the order of the recipe."""

NOT_COMPARED = ("run", "seed")
"""Settings that differ between runs of one recipe: the folder, and the seed, which is compared on its own."""

FACTS = ("outdo", "torch", "transformers", "device")
"""Facts about a run that are named if they differ, after the settings."""


def collect_runs(folders: Sequence[Path], view: View = DEFAULT_VIEW) -> list[PageData]:
    """Collect each run as `collect_run` does; the runs share the bytes of the page.

    If there are several runs, each also has

        differs   the settings and facts that are not the same in all runs, with their values in this run
        hidden    how many more settings differ
        compared  whether the settings of all runs are known
        seeds     the number of its group, if another run has the same settings and another seed; else null

    Raises: RunFolderError if a file of a folder cannot be opened.
    """
    runs = [collect_run(folder, view.shared(len(folders))) for folder in folders]
    if len(runs) < 2:
        return runs
    recipes = [_settings(run_files.table(folder, "recipe.toml", lambda _: None)) for folder in folders]
    differing = _differing(recipes, [dict(run["about"]) for run in runs])
    named = [*differing][:MOST_DIFFERENCES]
    names = _names(folders)
    for n, (run, group) in enumerate(zip(runs, seed_groups(recipes), strict=True)):
        run["name"] = names[n]
        run["differs"] = {name: differing[name][n] for name in named}
        run["hidden"] = len(differing) - len(named)
        run["compared"] = all(recipes)
        run["seeds"] = group
    return runs


def seed_groups(recipes: Sequence[Mapping[str, str]]) -> list[int | None]:
    """Return for each run the number of its group: runs with the same settings but for the seed; None for others."""
    settings = [tuple(item for item in recipe.items() if item[0] not in NOT_COMPARED) for recipe in recipes]
    seeds: dict[Any, set[str]] = {}
    for same, recipe in zip(settings, recipes, strict=True):
        seeds.setdefault(same, set()).add(recipe.get("seed", ""))
    groups = [same for same, seeds_of_group in seeds.items() if same and len(seeds_of_group) > 1]
    return [groups.index(same) if same in groups else None for same in settings]


def _settings(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return every setting of a recipe by its dotted name, as text."""
    return {name: text_or_json(value) for name, value in dotted(recipe)}


def _differing(recipes: Sequence[Mapping[str, str]], facts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values that are not the same in all runs, by their names; "–" where a run has no value.

    Settings are compared only if every run has a recipe: otherwise all settings of the others would differ.
    """
    names = dict.fromkeys(name for recipe in recipes for name in recipe if name != "run") if all(recipes) else {}
    values = {name: [recipe.get(name) for recipe in recipes] for name in names}
    values |= {name: [fact.get(name) for fact in facts] for name in FACTS}
    return {
        name: ["–" if value is None else redacted(value) for value in of_runs]
        for name, of_runs in values.items()
        if any(value != of_runs[0] for value in of_runs)
    }


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of the folders, with that of the parent if two are the same."""
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = ["/".join(path.parts[-2:]) for path in paths]
    return [redacted(name) for name in names]
