"""Questions that reasoning-gym generates: `reasoning-gym:chain_sum?seed=3&size=5000&min_terms=2`.

The part after `?` is optional. `seed` and `size` are 0 and 1,000 by default, `level` is a level of the task's
curriculum, and all other names are settings of the task, with JSON values. The same text always generates the same
questions.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from outdo.data.files import Records
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.hub_names import REASONING_GYM
from outdo.utils.packages import not_imported

SIZE = 1000


def records(path: str, pinned: Mapping[str, str] | None = None) -> Records:
    """Return rows with the columns `question`, `answer` and `entry`, the JSON text from which answers are scored.

    Raises `UserError` if reasoning-gym is not installed, has no such task or level, or refuses a setting.
    """
    factory, task, query = _task(path)
    settings = {"seed": 0, "size": SIZE} | dict(_settings(path, query))
    level = settings.pop("level", None)
    if level is not None and level not in (known := levels(path)):
        raise UserError([f"{path}: expected a level of {task} from 0 to {known[-1]}, found {level!r}"])
    try:
        settings = settings if level is None else _at_level(factory.create_curriculum(task), level, settings)
        data_set = factory.create_dataset(task, **settings)
        entries = (data_set[number] for number in range(data_set.size))
        first = data_set[0]
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError([f"{path}: reasoning-gym refuses it: {error}"]) from None
    if not _survives_json(first, data_set.score_answer):
        raise UserError(
            [f"{path}: its answers cannot be scored from rows, because JSON changes the entries of this task"]
        )
    return Records(
        {"question": entry["question"], "answer": entry["answer"] or "", "entry": _text(entry)} for entry in entries
    )


def levels(path: str) -> range:
    """Return the levels of the curriculum of a task: as many as the attribute with the most of them has.

    Raises `UserError` if reasoning-gym is not installed, has no such task, or no curriculum for it.
    """
    factory, task, _ = _task(path)
    if not factory.has_curriculum(task):
        raise UserError([f"{path}: reasoning-gym has no curriculum for the task {task!r}"])
    return range(max(len(attribute.levels) for attribute in factory.create_curriculum(task).attributes.values()))


def _at_level(curriculum: Any, level: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a level, in place of which those that are given count."""
    curriculum.set_global_level(level)
    config = curriculum.generate_configuration({})
    return {field.name: getattr(config, field.name) for field in fields(config) if field.init} | dict(settings)


def _task(path: str) -> tuple[ModuleType, str, str]:
    """Return the module with the tasks, the name of the task, and the text of its settings."""
    try:
        factory = import_module("reasoning_gym.factory")
    except ImportError as error:
        missing = f'{path}: needs the package reasoning-gym: pip install "outdo[gym]"'
        raise UserError([not_imported(error, "reasoning_gym", missing, ("gym",))]) from None
    task, _, query = path.removeprefix(REASONING_GYM).partition("?")
    if task not in factory.DATASETS:
        raise UserError([f"{path}: reasoning-gym has no task {task!r}{did_you_mean(task, list(factory.DATASETS))}"])
    return factory, task, query


def _settings(path: str, query: str) -> Iterator[tuple[str, Any]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise UserError([f"{path}: expected settings such as ?seed=3&size=5000 after the task"]) from None
    for name, text in pairs:
        try:
            yield name, json.loads(text)
        except json.JSONDecodeError:
            yield name, text


def _text(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False)


def _survives_json(entry: Mapping[str, Any], score: Callable[[str | None, dict[str, Any]], float]) -> bool:
    """Return whether the reference has the same score by the JSON text of its entry; tuples become lists there."""
    answer = entry["answer"]
    try:
        return score(answer, json.loads(_text(entry))) == score(answer, dict(entry))
    except TypeError:
        return False
