r"""Take apart what answers list: an ordered pair `(1,2)` is ordered, a set `\{1,2\}` and a list `1, 2` are not."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_SPACING = re.compile(
    r"\\(?:left|right|displaystyle|big|Big|bigl|bigr)(?![a-zA-Z])|(?<!\\)\\[,;:! ]|\\q?quad(?![a-zA-Z])"
)
_AND = re.compile(r"\\text\w*\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])")
_NAMES = re.compile(r"\A\(?[a-zA-Z](?:,[a-zA-Z])*\)?=(?=\()")
_NAMED = re.compile(r"\A([a-zA-Z](?:_\{?\w\}?)?)=(.+)\Z")
_COLUMN = re.compile(r"\\begin\{([pbvB]?matrix|array)\}(?:\{c\})?((?:(?!\\begin|&).)*?)\\end\{\1\}", re.DOTALL)

Kind = Literal["tuple", "set", "list", "column", "bracket"]

_BRACKETS = {r"\langle": "(", r"\rangle": ")", r"\{": "{", r"\}": "}"}
_KINDS: dict[str, Kind] = {"()": "tuple", "{}": "set", "[]": "bracket"}


@dataclass(frozen=True, slots=True)
class Listed:
    """What an expression lists, and how."""

    kind: Kind
    items: tuple[str, ...]
    names: tuple[str, ...] = ()  # of `x=1, y=2`


def listed(expression: str) -> Listed | None:
    """Return what an expression lists; `None` if it is one value."""
    text = _SPACING.sub("", expression).strip()
    if column := _COLUMN.fullmatch(text):
        rows = tuple(row.strip() for row in re.split(r"\\\\|\\cr(?![a-zA-Z])", column[2]) if row.strip())
        return Listed("column", rows) if len(rows) > 1 else None
    text = _NAMES.sub("", re.sub(r"\s+", "", _AND.sub(",", text)))
    for command, bracket in _BRACKETS.items():
        text = text.replace(command, bracket)
    kind = _KINDS.get(text[:1] + text[-1:])
    inner = _items(text[1:-1]) if kind else None
    if kind and inner and len(inner) > 1:
        return Listed(kind, inner)
    items = _items(text)
    return _named(items) if items and len(items) > 1 else None


def _named(items: tuple[str, ...]) -> Listed:
    """Return a list without brackets, with the names of its items if each has its own."""
    named = [match for item in items if (match := _NAMED.match(item))]
    names = tuple(match[1] for match in named)
    return (
        Listed("list", tuple(match[2] for match in named), names)
        if len(set(names)) == len(items)
        else Listed("list", items)
    )


def has_its_order(reference: Listed, answer: Listed, same: Callable[[str, str], bool]) -> bool:
    """Return whether two lists that have equal items have them in the order that counts."""
    kinds = (reference.kind, answer.kind)
    if "set" in kinds and ("tuple" in kinds or "bracket" in kinds):
        return False
    if reference.names and answer.names:
        if set(reference.names) != set(answer.names):
            return False
        theirs = dict(zip(answer.names, answer.items, strict=True))
        return all(same(theirs[name], item) for name, item in zip(reference.names, reference.items, strict=True))
    if reference.names or answer.names or kinds in (("list", "tuple"), ("tuple", "list")):
        return equal_in_order(reference, answer, same)
    return True


def equal_in_order(reference: Listed, answer: Listed, same: Callable[[str, str], bool]) -> bool:
    """Return whether two lists have the same items in the same order."""
    if len(reference.items) != len(answer.items):
        return False
    return all(same(mine, theirs) for mine, theirs in zip(answer.items, reference.items, strict=True))


def _items(text: str) -> tuple[str, ...] | None:
    """Return what the commas outside of brackets separate; `None` if the brackets do not match."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    items.append(text[start:])
    return tuple(items) if depth == 0 and all(items) else None
