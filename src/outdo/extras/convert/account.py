"""Make a recipe of a reading, so that each of its settings ends in the recipe, in a remark or as not complete.

The rules of a library say what its settings mean. That none is lost is counted here: each setting that the rules read
is left out once, and the recipe made again. If it is the same, the setting had no effect, which is said.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outdo.config.messages import format_value, to_toml
from outdo.config.settings import leaves
from outdo.config.unknown_settings import instead_of, listed_hint
from outdo.extras.convert.conversion import NOT_COMPLETE, Conversion, Given, Rule
from outdo.extras.convert.reading import Configuration, reading_of
from outdo.utils.text import dotted

TABLES = Path(__file__).parent
MISSPELT = 0.85
"""Similarity, of at most 1, from which on an unknown name may be a typing error."""

NEEDED = {
    "rewards": "the function that scores an answer",
    "model": "the model that is trained",
    "data.path": "the questions",
}
"""Settings of which no default of outdo may stand in for what the other library trains with."""

OFF = "without effect, because what they belong to is off"
"""The heading of settings that the other library does not read either."""

PROBES: tuple[Any, ...] = (
    *("probe", 1, 2, 0.5, True, False, ["probe"], {"r": 8}, [0.1, 0.2], "a/b", "r.py:f"),
    *("grpo", "rloo", "gspo", "reinforce", "cosine", "linear", "sgd", "token-mean", "seq-mean-token-sum"),
    *("seq-mean-token-mean", "k1", "k2", "k3", "mse", "batch", "none", "sequence", "adaptive", "group_norm"),
)
"""Values of all kinds: one that a rule takes shows which settings of the recipe depend on it."""


@dataclass(frozen=True)
class Library:
    """What is known of another library: its table, and the rules that make a recipe of its settings."""

    name: str
    shown: str
    table: Mapping[str, Any]
    defaults: Mapping[str, Any]
    rules: Sequence[Rule]

    def apply(self, written: Mapping[str, Any]) -> Conversion:
        """Return what the rules make of settings, without a word about those that no rule reads."""
        conversion = Conversion(library=self.name, given=Given(written, self.defaults))
        if conversion.check_types(self.table["numbers"].split()):
            conversion.settings["train.compat"] = self.name.lower()
            for rule in self.rules:
                rule(conversion)
            _copy_same_settings(conversion)
        return conversion

    def concern(self, name: str) -> str | None:
        """Return what a setting concerns besides the training: speed, memory or logs; None if nothing is known."""
        concerns, (*tables, _) = _concerns(self.name), name.split(".")
        names = [name, *(f"{table}." for table in tables), _last(name)]  # "profiler." is all that is below one
        return next((concerns[name] for name in names if name in concerns), None)

    def usual(self, name: str) -> Any:
        """Return the value that a setting without a meaning for a recipe has in the library by default, or None."""
        usual = self.table.get("usual", {})
        return usual.get(name, usual.get(_last(name)))

    def switch_off(self, name: str, given: Given) -> str | None:
        """Return what the library reads a setting with alone, and what is off; None if nothing is."""
        switches, parts = self.table.get("switches", {}), name.split(".")
        prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        switch = next((switches[prefix] for prefix in prefixes if prefix in switches), None)
        if switch is None or switch == name:
            return None
        other, _, wanted = switch.partition(" = ")
        value = given.written.get(other, self.defaults.get(other))
        is_on = str(value) == wanted if wanted else bool(value) and value not in ("no", -1)
        return None if is_on else _short(switch)


@cache
def table_of(library: str) -> Mapping[str, Any]:
    """Return the table of a library: `defaults` of its settings, and `others`, the names of all that have none."""
    return tomllib.loads((TABLES / f"{library}.toml").read_text(encoding="utf-8"))


@cache
def _concerns(library: str) -> Mapping[str, str]:
    concerns: Mapping[str, str] = table_of(library.lower()).get("concerns", {})
    return {name: concern for concern, names in concerns.items() for name in names.split()}


def converted(
    library: str,
    settings: Configuration | Mapping[str, Any],
    rules: Sequence[Rule],
    *,
    other_defaults: Mapping[str, Any] = MappingProxyType({}),
    table: Mapping[str, Any] | None = None,
    shown: str | None = None,
    needed: Mapping[str, str] = NEEDED,
) -> Conversion:
    """Return the recipe for the settings of a library, by its rules in their order.

    `other_defaults` are those in which a version of the library differs from its table; None for a setting without one.
    `table` and `shown` are the settings of a part of the library, and its name in sentences. `needed` are the settings
    of the recipe that have to be read.
    """
    reading, table = reading_of(settings), table or table_of(library.lower())
    defaults = {**dict(dotted(table["defaults"])), **other_defaults}
    source = Library(library, shown or library, table, defaults, rules)
    written = {_spelt(name): value for name, value in reading.written.items()}
    unread = {_spelt(name): what for name, what in reading.unread.items()}
    conversion = source.apply(written)
    _count_what_rules_read(conversion, source, written)
    _count_what_no_rule_reads(conversion, source)
    for name, what in unread.items():
        _mark_unread(conversion, source, name, what)
    if unread:
        conversion.incomplete += conversion.mistakes
        conversion.mistakes = []
    conversion.remarks = [
        *reading.remarks,
        *_origins(reading),
        *_earlier_versions(conversion, source),
        *conversion.remarks,
    ]
    conversion.incomplete = [*reading.missing, *conversion.incomplete]
    for key, what in needed.items():
        if key not in conversion.settings:
            conversion.incomplete.append(f"{key}: {what}; nothing that was read says it")
    if "rewards" not in conversion.settings:
        conversion.settings["rewards"] = f"{NOT_COMPLETE}rewards"
    return conversion


def _spelt(name: str) -> str:
    return name.replace("-", "_")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _short(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _origins(reading: Configuration) -> Iterator[str]:
    for origin in dict.fromkeys(reading.origins.values()):
        names = [name for name, of in reading.origins.items() if of == origin]
        yield f"{', '.join(names)}: {origin}, which another command line may set"


# ------------------------------------------------------------------------------------------------- what rules have read


def _count_what_rules_read(conversion: Conversion, source: Library, written: Mapping[str, Any]) -> None:
    """Leave out each setting that the rules have read, and report those without which everything is the same.

    Those stay left out, so that of two settings, each without effect beside the other, one is counted.
    """
    remaining, remarks = dict(written), [*conversion.remarks]
    for name in [name for name in written if name in conversion.given.read]:
        if not conversion.given.changed(name) or written[name] == source.usual(name):
            conversion.account[name] = "remark" if name in conversion.reported else "default"
            continue
        others = {other: value for other, value in remaining.items() if other != name}
        without = source.apply(others)
        if without.mistakes != conversion.mistakes or without.settings != conversion.settings:
            conversion.account[name] = "recipe"
            continue
        conversion.account[name] = "remark"
        if without.remarks == remarks and name not in conversion.reported:
            remaining = others
            _report_without_effect(conversion, source, name)


def _report_without_effect(conversion: Conversion, source: Library, name: str) -> None:
    if concern := source.concern(name):
        _aside(conversion, concern, _last(name))
    elif switch := source.switch_off(name, conversion.given):
        _aside(conversion, f"{OFF} ({switch})", _short(name))
    else:
        conversion.remark(name, "changes nothing beside the other settings")


def _aside(conversion: Conversion, heading: str, name: str) -> None:
    conversion.asides.setdefault(heading, []).append(name)


# ----------------------------------------------------------------------------------------------- what no rule has read


def _copy_same_settings(conversion: Conversion) -> None:
    """Copy the settings that outdo has with the same values and the same meaning."""
    for name in conversion.given.written:
        target = same_setting(name, conversion.library)
        if target is not None and name not in conversion.given.read:
            _copy(conversion, name, target)


def _copy(conversion: Conversion, name: str, target: str) -> None:
    value = conversion.given[name]
    if value is not None and conversion.settings.setdefault(target, value) != value:
        conversion.remark(name, f"the recipe has {target} = {to_toml(conversion.settings[target])}")


@cache
def same_setting(name: str, library: str) -> str | None:
    """Return the setting of outdo that takes the same values with the same meaning; None if there is none."""
    if name.startswith("critic.") or name.endswith(".optim.total_training_steps"):  # verl's trainer sets the latter
        return None
    libraries, instead, *note = instead_of(name) or ("", "")
    return instead if library in libraries.split(", ") and not note and instead in leaves() else None


def _count_what_no_rule_reads(conversion: Conversion, source: Library) -> None:
    """Report the settings that no rule has read; nothing is said about one that has its library's default."""
    given = conversion.given
    names = {*source.defaults, *source.table["others"].split()}
    last_parts = sorted({_last(name) for name in names})
    for name in [name for name in given.written if name not in given.read]:
        conversion.account[name] = "remark"
        if _is_usual(source, name, given.written[name]):
            conversion.account[name] = "default"
        elif concern := source.concern(name):
            _aside(conversion, concern, _last(name))
        elif switch := source.switch_off(name, given):
            _aside(conversion, f"{OFF} ({switch})", _short(name))
        elif (name in names or source.shown == source.name) and (hint := _hint(source, name)):
            conversion.remark(name, hint)
        elif name in names or _last(name) in last_parts:
            conversion.remark(name, "outdo has no such setting")
        else:
            _report_unknown(conversion, source, name, last_parts)


def _hint(source: Library, name: str) -> str | None:
    """Return what outdo has instead of a setting, unless the sentence speaks of other libraries."""
    hint, _, listed = (listed_hint(name) or "").partition(" (in ")
    libraries = listed.partition(":")[0].split(", ")
    return hint if source.name in libraries or not any(library in hint for library in libraries) else None


def _is_usual(source: Library, name: str, value: Any) -> bool:
    usual = source.defaults.get(name, source.usual(name))
    return (
        _last(name) == "_target_"
        or value in (None, [], {}, usual)
        or (usual is None and value is False and source.concern(name) is not None)
    )


def _report_unknown(conversion: Conversion, source: Library, name: str, last_parts: Sequence[str]) -> None:
    """Refuse a name that is nearly one that decides the training and is not set; report another one."""
    near = difflib.get_close_matches(_last(name), last_parts, n=1, cutoff=MISSPELT)
    decides = {*source.defaults, *conversion.given.read}
    meant = [known for known in decides if near and _last(known) == near[0]]
    if meant and not any(known in conversion.given.written for known in meant):
        conversion.mistakes.append(f"{name}: {source.shown} has no such setting; did you mean {near[0]}?")
        return
    asked = f"; did you mean {near[0]}?" if near else ""
    conversion.remark(name, f"neither {source.shown} nor outdo has this setting, as far as outdo knows{asked}")


# ---------------------------------------------------------------------------------------------------- what is not known


def _mark_unread(conversion: Conversion, source: Library, name: str, what: str) -> None:
    """Write into the recipe that a value is not known, wherever the value would decide."""
    text = f"{NOT_COMPLETE}{what}"
    known = {other: value for other, value in conversion.given.written.items() if other != name}
    before, reads = source.apply(known), False
    for probe in chain(_near_default(source.defaults.get(name)), PROBES):
        after = source.apply({**known, name: probe})
        reads = reads or name in after.given.read
        if {*after.mistakes} <= {*before.mistakes} and after.settings != before.settings:
            conversion.settings = _marked(conversion.settings, before.settings, after.settings, text)
            break
    else:
        if not reads:
            conversion.account[name] = "remark"
            if (concern := source.concern(name)) is not None:
                _aside(conversion, concern, _last(name))
            else:
                conversion.remarks.append(f"{name} = {what}: not known, and outdo has no such setting")
            return
    conversion.account[name] = "incomplete"
    conversion.incomplete.append(f"{name} = {what}")


def _near_default(default: Any) -> Iterator[Any]:
    if isinstance(default, bool):
        yield not default
    elif isinstance(default, int | float):
        yield from (2 * default, default + 1, default / 2)


def _marked(now: Any, before: Any, after: Any, text: str) -> Any:
    """Return `now` with the text in each place in which `before` and `after` differ."""
    if before == after:
        return now
    if isinstance(now, dict) and isinstance(before, dict) and isinstance(after, dict):
        names = dict.fromkeys([*now, *after])
        return {name: _marked(now.get(name), before.get(name), after.get(name), text) for name in names}
    return text


# --------------------------------------------------------------------------------------------------- earlier versions


def _earlier_versions(conversion: Conversion, source: Library) -> Iterator[str]:
    """Yield a remark about the earliest version whose settings are written, with the defaults in which it differed."""
    written = conversion.given.written
    for version in source.table.get("earlier", ()):
        signs = [name for name in written if name in version["signs"] or _last(name) in version["signs"]]
        differing = [
            f"{name} = {format_value(value)} (now {format_value(source.defaults.get(name))})"
            for name, value in version["defaults"].items()
            if name not in written
        ]
        if signs and differing:
            yield (
                f"{', '.join(signs)}: of {source.name} {version['when']}, which had other defaults; the recipe has "
                f"today's where nothing is written. If you trained with that version, give them: {', '.join(differing)}"
            )
            return
