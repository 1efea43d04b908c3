"""Compare a run with what its checkpoint was saved by: which differences a resumed run may have."""

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.config.environments import environment_files
from outdo.config.messages import to_toml
from outdo.config.recipe import Recipe
from outdo.config.settings import settings
from outdo.models.template_header import DATE
from outdo.utils.errors import UserError
from outdo.utils.imports import source_file, split, with_neighbours
from outdo.utils.source_inputs import files_read, variables_read
from outdo.utils.text import dotted

MAY_CHANGE = (
    "run",
    "steps",
    "device",
    "threads",
    "workers",  # of a run that was saved when several processes could share the weights of a model
    "gradient_products",
    "gradient_products.*",
    "compile",
    "attention",
    "attention.*",
    "train.micro_batch_tokens",
    "train.gradient_checkpointing",
    "reward_limits.*",
    "eval.every",
    "eval.rows",
    "eval.samples",
    "eval.greedy",
    "eval.best",
    "eval.best.*",
    "checkpoint.*",
    "record.*",
    "cluster.*",
    "engine.processes",
    "engine.devices",
    "engine.python",
    "engine.url",
    "engine.timeout",
    "track",
)
"""Settings that may change when a run is resumed: they decide where and how long it runs and what it records. A change
of any other setting would make it a different run. With other `steps`, a falling learning rate falls differently."""

LAST_BITS = (
    "device",
    "threads",
    "workers",
    "gradient_products",
    "gradient_products.input",
    "gradient_products.weight",
    "compile",
    "attention",
    "attention.name",
    "attention.replicas",
    "cluster.replicas",
    "cluster.shard",
    "cluster.shard.reduce_dtype",
    "train.micro_batch_tokens",
    "train.gradient_checkpointing",
)
"""Those of them with which a resumed run is no longer bit for bit equal to an uninterrupted one."""

_SPEC = re.compile(r"[^\s:]+:[A-Za-z_]\w*")


def accepted_changes(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    folder: Path,
    *,
    may_change: Sequence[str] = MAY_CHANGE,
    changed: bool = False,
) -> list[str]:
    """Compare the identity of a saved training with that of the resumed one; return a line for each difference.

    An identity has `settings`, `versions`, the `process` that computes, and the SHA-256 of `data`, `code`, reward
    `models` and environment `variables`; what `saved` lacks is not compared. Settings that match one of the patterns
    `may_change` may differ, and so may versions and process.

    Raises: UserError with all other differences, which make it another training, unless `changed`.
    """
    settings = saved["settings"], now["settings"]
    refused = refused_differences(*settings, may_change)
    allowed = [line for line in differences(*settings) if line not in refused]
    refused = [f"{line}; this changes the run" for line in [*refused, *_changed_files(saved, now)]]
    if refused and not changed:
        raise UserError([*refused, f"undo the changes, or `outdo resume {folder} --changed` if they are meant"])
    other_versions = differences(saved.get("versions", now["versions"]), now["versions"])
    process = saved.get("process", {}), now.get("process", {}) if "process" in saved else {}
    others = [key for key, *_ in _changes(*settings) if key in LAST_BITS] + ["versions"] * bool(other_versions)
    others += [key for key, *_ in _changes(*process) if key not in others]
    notice = f"with other {', '.join(others)}, the steps from here on can differ in their last bits"
    return [*allowed, *other_versions, *differences(*process), *([notice] if others else []), *refused]


def _changed_files(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each change of what is read from files: data, code and reward models."""
    for kind, changes in (
        ("data", _changed_data),
        ("code", changed_code),
        ("models", _changed_models),
        ("variables", _changed_variables),
    ):
        if kind in saved:
            yield from changes(saved[kind], now[kind])


def overrides_between(saved: Recipe, recipe: Recipe, *, given: Recipe | None = None) -> list[str]:
    """Return the overrides that make `saved` the recipe of a run by `recipe`.

    A setting that is unset or "auto" in `recipe`, or that may change in a run and is not named in it, stays as it is
    saved. `given` is the recipe as the user wrote it, if `recipe` was made of it: it tells which settings are named.
    """
    named = given or recipe
    tables = [side.model_dump(mode="json") for side in (saved, recipe)]
    overrides = []
    for key in settings():
        section, _, name = key.rpartition(".")
        before, now = ((values[section] if section else values)[name] for values in tables)
        now = _with_kept_date(before, now) if key == "data.template" else now
        is_named = name in (getattr(named, section) if section else named).model_fields_set
        is_left_to_outdo = now in (None, "auto") or (may_differ(key) and not is_named)
        if now != before and not is_left_to_outdo:
            overrides.append(f"{key}={to_toml(now)}")
    return overrides


def _with_kept_date(before: Any, now: Any) -> Any:
    """Return options of a chat template with the date of those before, which outdo has added to them."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping) or DATE not in before:
        return now
    return {DATE: before[DATE], **now}


def may_differ(key: str, patterns: Sequence[str] = MAY_CHANGE) -> bool:
    """Return whether a resumed run may have another value of a setting: one that matches one of the `patterns`."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how two resolved recipes or environments differ: a line for each dotted key, in order."""
    return [f"{key}: {before} in the saved run, {after} now" for key, before, after in _changes(saved, now)]


def refused_differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], patterns: Sequence[str] = MAY_CHANGE
) -> list[str]:
    """Return the lines of `differences` that a resume refuses: those of keys that match none of the `patterns`."""
    return [
        f"{key}: {before} in the saved run, {after} now"
        for key, before, after in _changes(saved, now)
        if not may_differ(key, patterns)
    ]


def changed_code(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a line for each file of the saved run, given with its SHA-256, that has changed or is no longer used.

    A file that is new is read by one that has changed, or has been made by the run itself.
    """
    return [
        f"{file}: the code of the run has changed (SHA-256 {hash_then[:12]} in the saved run, "
        f"{now.get(file, 'none')[:12]} now)"
        for file, hash_then in sorted(saved.items())
        if hash_then != now.get(file)
    ]


def _changed_data(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    changed = [key for key in sorted(saved.keys() | now.keys()) if saved.get(key) != now.get(key)]
    return [f"{key}: the file has changed since the run was started" for key in changed]


def _changed_models(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    changed = [path for path in sorted(saved.keys() & now.keys()) if saved[path] != now[path]]
    return [f"{path}: the reward model has changed since the run was started" for path in changed]


def _changed_variables(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    changed = [name for name in sorted(saved.keys() | now.keys()) if saved.get(name) != now.get(name)]
    return [f"{name}: the environment variable, which a reward reads, has another value" for name in changed]


def source_files(recipe: Recipe) -> list[Path]:
    """Return the source files that a recipe names as `file.py:name` or `package.module:name`.

    They are those of its rewards, its environment, `data.inputs` and the pieces of its method, each with the modules of
    its folder that it imports, and the files that these and its environment read.
    """
    included = {"rewards": True, "train": True, "optim": True, "environment": True, "data": {"inputs"}}
    named = recipe.model_dump(mode="json", include=included)
    specs = {text for text in _texts(named) if _SPEC.fullmatch(text)}
    read = {path.resolve() for path in environment_files(recipe.environment)}
    sources = {path for spec in specs for path in _sources(spec)}
    return sorted(sources.union(read, *map(files_read, sources)))


def reward_variables(recipe: Recipe) -> set[str]:
    """Return the environment variables that the files of a recipe's own reward functions read."""
    specs = [spec for reward in recipe.rewards if _SPEC.fullmatch(spec := reward.name)]
    return {name for spec in specs for path in _sources(spec) for name in variables_read(path)}


def _sources(spec: str) -> list[Path]:
    try:
        return with_neighbours(source_file(split(spec)[0]))
    except UserError:  # a text that only looks like the name of a piece; a real name is checked where it is used
        return []


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            yield from _texts(list(value.values()))
        case list():
            for item in value:
                yield from _texts(item)


def _changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    before, after = dict(flatten(saved)), dict(flatten(now))
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, "unset"), after.get(key, "unset")
        if old != new:
            yield key, old, new


def flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and their values as JSON, so that a tuple equals the list that is read back."""
    for key, value in dotted(table):
        if value is not None:  # TOML has no null: a setting that is None is not written
            yield key, json.dumps(value, default=str, ensure_ascii=False)
