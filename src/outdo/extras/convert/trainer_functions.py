"""Rewards, tools and environments of a script, by the names that a recipe has for them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outdo.extras.convert.expressions import Call, Expression, Function, Name, NotPlainError, Partial, plain, shown
from outdo.extras.convert.reading import CODE, Configuration
from outdo.extras.convert.script_source import Sources, source_of


def put_functions(reading: Configuration, given: Mapping[str, Expression], sources: Sources) -> None:
    """Put rewards, tools and the class of an environment, and the code of those that the script defines."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            reading.missing.append(f"{name}: a table of several")
        elif value is not None and value != []:
            listed = value if isinstance(value, list) else [value]
            names = list(_functions(reading, listed, sources, name))
            reading.written[name] = names[0] if name == "environment_factory" else names
    _put_source(reading, sources)


def _functions(reading: Configuration, values: Sequence[Expression], sources: Sources, of: str) -> Iterator[Any]:
    """Yield functions as a recipe names them; what it cannot name is unread, and its place says so."""
    for place, value in enumerate(values, 1):
        try:
            yield _named(value, sources, is_reward=of == "reward_funcs")
        except NotPlainError as error:
            name = of if len(values) == 1 else f"{of}[{place}]"
            reading.missing.append(f"{name}: {error}")
            yield f"not complete: {error}"


def _named(value: Expression, sources: Sources, *, is_reward: bool) -> Any:
    """Return the name of a function in a recipe. Raises `NotPlainError` for one that a recipe cannot name."""
    if isinstance(value, str | Name):
        return shown(value)
    if isinstance(value, Partial):
        name = _named(value.function, sources, is_reward=is_reward)
        return {**(name if isinstance(name, dict) else {"name": name}), **plain(dict(value.keywords))}
    if isinstance(value, Call):
        return _named_call(value, sources, is_reward=is_reward)
    if isinstance(value, Function):
        return _named_function(value, sources, is_reward=is_reward)
    raise NotPlainError(shown(value))


def _named_function(value: Function, sources: Sources, *, is_reward: bool) -> str:
    is_wrapped = is_reward and (sources.messages or sources.rows)
    if value.file != str(sources.path) and not value.bound:
        raise NotPlainError(f"{shown(value)} of line {value.line} of {value.file}, which is made while the script runs")
    if value.file != str(sources.path) and not is_wrapped and "." not in value.module:
        return f"{value.file}:{value.name}"
    sources.add(value, is_reward=is_reward)
    return f"{CODE}{value.name}"


def _named_call(call: Call, sources: Sources, *, is_reward: bool) -> Any:
    if call.name == "get_soft_overlong_punishment":
        given = call.named("max_completion_len", "soft_punish_cache")
        names = {"max_completion_len": "max_tokens", "soft_punish_cache": "cache"}
        return {"name": "overlong", **{names.get(name, name): plain(value) for name, value in given.items()}}
    if call.name == "from_pretrained" and call.arguments:  # a reward model
        return plain(call.arguments[0])
    decorated = call.arguments[0] if len(call.arguments) == 1 else None
    if isinstance(decorated, Function) and sources.is_decorated(decorated):
        return _named(decorated, sources, is_reward=is_reward)
    raise NotPlainError(shown(call))


def _put_source(reading: Configuration, sources: Sources) -> None:
    """Put the code of the functions that the recipe names; a name that it lacks is unread."""
    if not sources.functions and not sources.imports:
        return
    reading.source, lacking = source_of(sources)
    if lacking:
        functions = ", ".join([*sources.functions, *sources.imports])
        reading.missing.append(f"{', '.join(lacking)}: read by {functions}, and set by the script while it runs")
