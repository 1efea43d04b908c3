"""Questions that reasoning-gym generates: `reasoning-gym:chain_sum?seed=3&size=5000&min_terms=2`.

The part after `?` is optional. `seed` and `size` are 0 and 1,000 by default, and all other names are settings of the
task, with JSON values. The same text always generates the same questions.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

from outdo.utils.errors import UserError, did_you_mean

PREFIX = "reasoning-gym:"
SIZE = 1000


def generated_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield rows with the columns `question`, `answer` and `entry`, the JSON text from which answers are scored.

    Raises `UserError` if reasoning-gym is not installed, has no such task, or refuses a setting.
    """
    try:
        factory = import_module("reasoning_gym.factory")
    except ImportError:
        raise UserError([f'{path}: needs the package reasoning-gym: pip install "outdo[gym]"']) from None
    task, _, query = path.removeprefix(PREFIX).partition("?")
    if task not in factory.DATASETS:
        raise UserError([f"{path}: reasoning-gym has no task {task!r}{did_you_mean(task, list(factory.DATASETS))}"])
    settings = {"seed": 0, "size": SIZE} | dict(_settings(path, query))
    try:
        data_set = factory.create_dataset(task, **settings)
        entries = (data_set[number] for number in range(data_set.size))
        first = data_set[0]
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError([f"{path}: reasoning-gym refuses it: {error}"]) from None
    if not _survives_json(first, data_set.score_answer):
        raise UserError(
            [f"{path}: its answers cannot be scored from rows, because JSON changes the entries of this task"]
        )
    return (
        {"question": entry["question"], "answer": entry["answer"] or "", "entry": _text(entry)} for entry in entries
    )


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
