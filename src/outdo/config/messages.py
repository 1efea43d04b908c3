"""From pydantic's errors to sentences about a recipe: the key, what was expected, what was found, the nearest name."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from outdo.config.recipe import sections, settings
from outdo.utils.errors import did_you_mean

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "too_short": "at least one",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "model_type": "a table of settings",
    "model_attributes_type": "a table of settings",
    "invalid_key": "a name as key",
    "dict_type": "a table",
    "mapping_type": "a table",
}

MOVED = {
    "optim.warmup": ("optim.schedule", {"name": "constant"}),
    "optim.betas": ("optim.algorithm", {"name": "adamw"}),
    "optim.eps": ("optim.algorithm", {"name": "adamw"}),
    "optim.weight_decay": ("optim.algorithm", {"name": "adamw"}),
    "reference.every": ("reference.sync", {}),
    "reference.mix": ("reference.sync", {"every": 20}),
}
"""Keys of older recipes, the setting each is an option of now, and what else that one needs."""


def sentences(errors: Sequence[ErrorDetails], raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with the tables `raw`, in order: `(key, sentence)`. A setting that may be one of several kinds,
    and is none of them, has an error for each: it is told once."""
    told: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        told.setdefault(".".join(map(str, _place(error["loc"], raw))), []).append(error)
    return [(key, _sentence(key, those, raw)) for key, those in told.items()]


def shown(value: Any) -> str:
    """A value as a sentence names it: short, and as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return "a table" if isinstance(value, dict) else textwrap.shorten(text, 60, placeholder=" ...")[:64]


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    match value:
        case bool():
            return str(value).lower()
        case str():  # a TOML string is a JSON string, but for one control character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(key)} = {toml(inner)}' for key, inner in value.items())}}}"
        case _:
            return repr(value)


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml(text)


def _place(loc: tuple[int | str, ...], raw: Any) -> tuple[int | str, ...]:
    """Where in the recipe an error is: without what pydantic appends for the kind that was tried."""
    for depth, part in enumerate(loc):
        if not isinstance(raw, dict | list):
            return loc[:depth]
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):  # what is missing; or a piece, whose table is read in another form
            return loc
    return loc


def _sentence(key: str, errors: Sequence[ErrorDetails], raw: Mapping[str, Any]) -> str:
    first = errors[0]
    kind, found = first["type"], first["input"]
    if kind == "extra_forbidden":
        return f"{key}: {_moved(key, raw) or f'unknown key{_nearest_key(key)}'}"
    if kind == "missing":
        return f"{key}: required"
    if kind == "value_error":
        return f"{key}: {first.get('ctx', {})['error']}, found {shown(found)}"
    expected = " or ".join(dict.fromkeys(map(_expected, errors)))
    return f"{key}: expected {expected}, found {shown(found)}{_unquoted(kind, found)}"


def _expected(error: ErrorDetails) -> str:
    plain = error["msg"].removeprefix("Input should be ")
    return EXPECTED.get(error["type"], plain).format(**error.get("ctx", {}))


def _moved(key: str, raw: Mapping[str, Any]) -> str:
    """How an older recipe's setting is written now, with its value in it; empty if it never was a setting."""
    if key not in MOVED:
        return ""
    now, needed = MOVED[key]
    table, name = now.split(".")
    values = raw[table]
    given = values.get(name, {})
    given = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    options = {
        old.partition(".")[2]: values[old.partition(".")[2]]
        for old, (place, _) in MOVED.items()
        if place == now and old.partition(".")[2] in values
    }
    return f"is written {now} = {toml({**needed, **given, **options})} now"


def _unquoted(kind: str, found: Any) -> str:
    """What to do about a number that was written as text."""
    if kind not in ("int_type", "float_type") or not isinstance(found, str):
        return ""
    try:
        float(found)
    except ValueError:
        return ""
    return ", which is text: take the quotes off; in YAML write 1.0e-6 for 1e-6"


def _nearest_key(key: str) -> str:
    """`; did you mean X?`: the right name in another table first, then what is spelled alike."""
    known = [*settings(), *sections()]
    last = key.rpartition(".")[2]
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    by_last = {name.rpartition(".")[2]: name for name in reversed(known)}
    near = did_you_mean(key, known)
    return near or re.sub(r"mean (\w+)", lambda m: f"mean {by_last[m[1]]}", did_you_mean(last, list(by_last)))
