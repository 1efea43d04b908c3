"""Rewards, tools and environments of a script, by the names that a recipe has for them."""

import functools
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

from outdo.extras.convert.reading import CODE, Configuration
from outdo.extras.convert.recorder.source import Function, Sources, function_of, source_of
from outdo.extras.convert.recorder.unknown import (
    NotPlainError,
    Unknown,
    called,
    first_of,
    named,
    origin_of,
    plain,
    shown,
)

OVERLONG = {"max_completion_len": "max_tokens", "soft_punish_cache": "cache"}
"""The arguments of `get_soft_overlong_punishment`, and outdo's names for them."""


def put_functions(reading: Configuration, given: Mapping[str, Any], sources: Sources) -> None:
    """Put rewards, tools and the class of an environment, and the code of those that the script defines."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            reading.missing.append(f"{name}: a table of several")
            continue
        values = value if isinstance(value, list | tuple) else [value]
        if value is not None and values:
            names = list(_functions(reading, values, sources, name))
            reading.written[name] = names[0] if name == "environment_factory" else names
    if sources.functions or sources.imports:
        reading.source, lacking = source_of(sources)
        if lacking:
            functions = ", ".join([*sources.functions, *sources.imports])
            reading.missing.append(f"{', '.join(lacking)}: read by {functions}, and set by the script while it runs")


def _functions(reading: Configuration, values: Any, sources: Sources, of: str) -> Iterator[Any]:
    """Yield functions as a recipe names them; what it cannot name is unread, and its place says so."""
    for number, value in enumerate(values, 1):
        try:
            yield _named(value, sources, is_reward=of == "reward_funcs")
        except NotPlainError as error:
            name = of if len(values) == 1 else f"{of}[{number}]"
            reading.missing.append(f"{name}: {error}")
            yield f"not complete: {error}"


def _named(value: Any, sources: Sources, *, is_reward: bool) -> Any:
    """Return the name of a function in a recipe. Raises `NotPlainError` for one that a recipe cannot name."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, MethodType):
        raise NotPlainError(f"{shown(value)}, a method of {shown(value.__self__)}")
    if isinstance(value, functools.partial) and not value.args:
        name = _named(value.func, sources, is_reward=is_reward)
        return {**(name if isinstance(name, dict) else {"name": name}), **plain(value.keywords)}
    kind = origin_of(value).kind if isinstance(value, Unknown) else ""
    if kind == "name":
        return shown(value)
    if kind == "call":
        return _named_call(value, sources, is_reward=is_reward)
    if (function := function_of(value)) is not None:
        return _named_function(function, sources, is_reward=is_reward)
    raise NotPlainError(shown(value))


def _named_function(function: Function, sources: Sources, *, is_reward: bool) -> str:
    is_wrapped = is_reward and bool(sources.messages or sources.rows)
    is_of_another_file = function.file != sources.path
    if is_of_another_file and not function.bound:
        where = f"line {function.line} of {function.file}"
        raise NotPlainError(f"{function.name} of {where}, which is made while the script runs")
    if is_of_another_file and not is_wrapped and "." not in function.module:
        return f"{function.file}:{function.name}"
    sources.add(function, is_reward=is_reward)
    return f"{CODE}{function.name}"


def _named_call(call: Any, sources: Sources, *, is_reward: bool) -> Any:
    first = first_of(call)
    if called(call) == "get_soft_overlong_punishment":
        given = named(call, *OVERLONG)
        return {"name": "overlong", **{OVERLONG.get(name, name): plain(value) for name, value in given.items()}}
    if called(call) == "from_pretrained" and first is not None:  # a reward model
        return plain(first)
    function = function_of(first)
    if function is not None and sources.is_decorated(function):
        return _named_function(function, sources, is_reward=is_reward)
    raise NotPlainError(shown(call))
