"""Explain settings that outdo does not know: names of other libraries, and misspelt names."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from outdo.config.fields import Section
from outdo.config.recipe import Recipe
from outdo.config.settings import table_in
from outdo.utils.errors import nearest

OTHER_LIBRARIES = Path(__file__).with_name("other_libraries.toml")
"""What a recipe has instead of the settings of other libraries."""


def explain_unknown_setting(key: str) -> str:
    """Return the sentence about a setting that outdo does not have, without its key.

    It names what outdo has instead of another library's setting, or why it has none, or else the most similar name.
    Below a first part that outdo has, only its own settings are compared.
    """
    hint = listed_hint(key)
    if hint is None:
        name, is_ours = _nearest_setting(key), key.partition(".")[0] in Recipe.model_fields
        hint = f"did you mean {name}?" if name else None if is_ours else _nearest_listed_hint(key)
    return f"unknown setting; {hint}" if hint else "unknown setting"


def listed_hint(key: str) -> str | None:
    """Return what `other_libraries.toml` lists for a key, as a sentence, or None.

    The key is looked up whole, then without its first part, and so on; letter case, `-` and `_` do not matter.
    """
    table = other_libraries()
    for name in _endings(key):
        if name in table["instead"]:
            libraries, instead, *note = table["instead"][name]
            return f"outdo has {'; '.join([instead, *note])} (in {libraries}: {name})"
        if name in table["none"]:
            libraries, reason = table["none"][name]
            return f"outdo has no such setting, because {reason} (in {libraries}: {name})"
    return None


def instead_of(key: str) -> tuple[str, ...] | None:
    """Return what outdo has instead of another library's setting, as `other_libraries.toml` lists it, or None."""
    table = other_libraries()
    listed = next((name for name in _endings(key) if name in table["instead"] or name in table["none"]), "")
    return tuple(table["instead"][listed]) if listed in table["instead"] else None


def _endings(key: str) -> list[str]:
    """Return a dotted key as the table spells it, whole, then without its first part, and so on."""
    parts = key.lower().replace("-", "_").split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


@lru_cache(maxsize=1)
def other_libraries() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of `other_libraries.toml`; its first lines describe them."""
    return tomllib.loads(OTHER_LIBRARIES.read_text(encoding="utf-8"))


def _nearest_setting(key: str) -> str | None:
    """Return the setting that a key means; None if there is none that is similar.

    The first part decides first: below it, or below the one that it misspells, the last part is compared. Elsewhere it
    has to be the same, and in no other table, unless the first part is like none.
    """
    known, (first, _, rest), last = [*_keys()], key.partition("."), key.rpartition(".")[2]
    is_ours = first in Recipe.model_fields
    table = first if is_ours else nearest(first, list(Recipe.model_fields))
    if table and not rest:
        return table
    same = [name for name in known if name.rpartition(".")[2] == last]
    below = _similar_in([name for name in known if name.startswith(f"{table}.")], key)
    return below or (same[0] if len(same) == 1 else None if is_ours else _similar_in(known, key))


def _keys(table: type[Section] = Recipe, before: str = "") -> Iterator[str]:
    """Yield every dotted key that a recipe may have, those of nested tables included."""
    for name, info in table.model_fields.items():
        yield f"{before}{name}"
        if inner := table_in(info.annotation):
            yield from (key for key in _keys(inner, f"{before}{name}.") if not key.endswith((".name", ".options")))


def _similar_in(known: Sequence[str], key: str) -> str | None:
    """Return the setting whose last part is most similar to that of `key`; settings of the same table come first."""
    table, _, last = key.rpartition(".")
    by_last_part: dict[str, str] = {}
    for name in sorted(known, key=lambda name: name.rpartition(".")[0] != table):  # a stable sort
        by_last_part.setdefault(name.rpartition(".")[2], name)
    similar = nearest(last, list(by_last_part))
    return similar and by_last_part[similar]


def _nearest_listed_hint(key: str) -> str | None:
    """Return the hint for the setting of another library whose last part is most similar to that of `key`."""
    table = other_libraries()
    name = nearest(key.rpartition(".")[2], [*table["instead"], *table["none"]])
    return name and listed_hint(name)
