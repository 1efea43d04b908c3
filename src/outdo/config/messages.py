"""Turn pydantic's errors into sentences about a recipe: the key, what is expected, what was found, the nearest name."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from outdo.config.unknown_settings import explain_unknown_setting

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


def describe_errors(errors: Sequence[ErrorDetails], raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is wrong with the tables `raw`, in order, as `(key, sentence)`.

    A setting that may be of several kinds, and is of none of them, has an error for each kind: it gets one sentence.
    A table that outdo does not know gets a sentence for each setting in it.
    """
    by_key: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        by_key.setdefault(".".join(map(str, _location(error["loc"], raw))), []).append(error)
    return [sentence for key, those in by_key.items() for sentence in _sentences(key, those)]


def format_value(value: Any) -> str:
    """Return a value as a sentence names it: short, and as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return "a table" if isinstance(value, dict) else textwrap.shorten(text, 60, placeholder=" ...")[:64]


def to_toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    match value:
        case bool():
            return str(value).lower()
        case str():  # a TOML string is a JSON string, except for one control character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(to_toml, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(key)} = {to_toml(inner)}' for key, inner in value.items())}}}"
        case _:
            return repr(value)


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else to_toml(text)


def _location(loc: tuple[int | str, ...], raw: Any) -> tuple[int | str, ...]:
    """Return where in the recipe an error is: `loc` without what pydantic appends for each kind that it tried."""
    for depth, part in enumerate(loc):
        if not isinstance(raw, dict | list):
            return loc[:depth]
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):  # a missing setting; or a piece, whose table has another form here
            return loc
    return loc


def _sentences(key: str, errors: Sequence[ErrorDetails]) -> Iterator[tuple[str, str]]:
    first = errors[0]
    kind, found = first["type"], first["input"]
    if kind == "extra_forbidden":
        yield from ((name, f"{name}: {explain_unknown_setting(name)}") for name in _settings_in(key, found))
    elif kind == "missing":
        yield key, f"{key}: required"
    elif kind == "value_error":
        yield key, f"{key}: {first.get('ctx', {})['error']}, found {format_value(found)}"
    else:
        expected = " or ".join(dict.fromkeys(map(_expected, errors)))
        hint = _quoted_number_hint(kind, found)
        yield key, f"{key}: expected {expected}, found {format_value(found)}{hint}"


def _settings_in(key: str, value: Any) -> Iterator[str]:
    """Yield the keys of all settings in a table that outdo does not know; `key` itself if it is no table."""
    if not isinstance(value, Mapping) or not value:
        yield key
        return
    for name, inner in value.items():
        yield from _settings_in(f"{key}.{name}", inner)


def _expected(error: ErrorDetails) -> str:
    plain = error["msg"].removeprefix("Input should be ")
    return EXPECTED.get(error["type"], plain).format(**error.get("ctx", {}))


def _quoted_number_hint(kind: str, found: Any) -> str:
    """Return how to write a number that was written as text."""
    if kind not in ("int_type", "float_type") or not isinstance(found, str):
        return ""
    try:
        float(found)
    except ValueError:
        return ""
    return ", which is text: take the quotes off; in YAML write 1.0e-6 for 1e-6"
