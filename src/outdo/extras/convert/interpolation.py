"""Fill in what stands between `${` and `}` in the settings of verl, as OmegaConf does."""

import re
from collections.abc import Mapping
from typing import Any

from outdo.extras.convert.reading import MARK, Settings
from outdo.extras.convert.words import hydra_value

INNERMOST = re.compile(r"\$\{([^${}]*)\}")
DEEPEST = 10


def interpolated(written: Mapping[str, Any], defaults: Mapping[str, Any]) -> Settings:
    """Return the settings with the values that they take from others, and marks where nobody knows the value.

    `${a.b}` is another setting, or its default; `${.b}` one of the same table. `${oc.select:a.b,VALUE}` and
    `${oc.env:NAME,VALUE}` have defaults of their own.
    """
    known = {**defaults, **written}
    return {name: _filled(name, value, known, DEEPEST) for name, value in written.items()}


def _filled(name: str, value: Any, known: Mapping[str, Any], depth: int) -> Any:
    if isinstance(value, list):
        return [_filled(name, part, known, depth) for part in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth == 0:
        return MARK.format(value.replace("$", ""))
    if whole := INNERMOST.fullmatch(value):
        return _value_of(name, whole[1], known, depth - 1)
    match = INNERMOST.search(value)
    if match is None:
        return MARK.format(value)
    filled = f"{value[: match.start()]}{_value_of(name, match[1], known, depth - 1)}{value[match.end() :]}"
    return _filled(name, filled, known, depth - 1)


def _value_of(name: str, expression: str, known: Mapping[str, Any], depth: int) -> Any:
    """Return the value of what stands between the braces in the setting `name`."""
    resolver, colon, arguments = expression.partition(":")
    key, comma, otherwise = (arguments if colon else expression).partition(",")
    if colon and resolver not in ("oc.select", "oc.env"):
        return MARK.format("${" + expression + "}")
    if resolver == "oc.env":
        return hydra_value(otherwise) if comma else MARK.format(f"${key}")
    key = _absolute(name, key.strip())
    if key in known:
        return _filled(key, known[key], known, depth)
    if any(other.startswith(f"{key}.") for other in known):  # a table, whose settings are read by themselves
        return None
    return hydra_value(otherwise) if comma or colon else MARK.format("${" + expression + "}")


def _absolute(name: str, key: str) -> str:
    """Return a key that begins with dots, each of which is a level above the setting, as a whole key."""
    dots = len(key) - len(key.lstrip("."))
    tables = name.split(".")[:-dots] if dots else []
    return ".".join([*tables, key[dots:]])
