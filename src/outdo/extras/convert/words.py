"""Words of a command line as settings: flags, and the values of Hydra.

This module is also sent into the sandbox, and imports the standard library alone.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

PLAIN_TABLE = re.compile(r"\{\s*\w+\s*:[^,:{}\[\]'\"]*(,\s*\w+\s*:[^,:{}\[\]'\"]*)*\}")
"""`{a: b, c: d}` without lists, quotes or tables in it."""


def flags(words: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return flags, `--name value ...` or `--name`, by their names, and the words that belong to none."""
    written: dict[str, Any] = {}
    loose: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--") and word != "--":
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            written[name] = hydra_value(value) if equals else True
        elif name:
            before, value = written[name], hydra_value(word)
            written[name] = value if before is True else [*(before if isinstance(before, list) else [before]), value]
        else:
            loose.append(word)
    return written, loose


def hydra_value(text: str) -> Any:
    """Return a value as Hydra reads it: a number, true, false or null, `[a, b]`, or text with or without quotes.

    A table is one of JSON, or `{a: b}`.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1]
        return hydra_value(inner) if inner.startswith("[") else inner
    if text.startswith("[") and text.endswith("]"):
        return [hydra_value(part) for part in text[1:-1].split(",") if part.strip()]
    return _table(text) if text.startswith("{") else plain_value(text)


def _table(text: str) -> Any:
    if PLAIN_TABLE.fullmatch(text):
        pairs = (part.partition(":") for part in text[1:-1].split(","))
        return {name.strip(): hydra_value(value) for name, _, value in pairs}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def plain_value(text: str) -> Any:
    """Return the number, true, false or null (None) that a text stands for, or else the text."""
    words = {"null": None, "none": None, "": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
