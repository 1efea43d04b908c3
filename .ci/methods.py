"""Write `src/outdo/config/methods.toml` from the marks of the objectives and advantages: `make methods`.

The check of a recipe reads this file, because reading the marks themselves takes torch. A test compares the two.
"""

import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from outdo.algorithms import advantages, objectives
from outdo.algorithms.advantages.base import per_token
from outdo.algorithms.advantages.signal import cannot_be_asked
from outdo.algorithms.marks import AdvantageFacts, AdvantageMark, ObjectiveFacts, ObjectiveMark
from outdo.algorithms.objectives.base import ComposedObjective, has_ratio
from outdo.algorithms.objectives.compat import CONVENTIONS
from outdo.algorithms.requirements import Requires

TABLE = Path(__file__).parents[1] / "src/outdo/config/methods.toml"
HEAD = "# What is true of each method: written by `make methods` from the marks in src/outdo/algorithms.\n"

Table = dict[str, dict[str, Mapping[str, Any]]]


def main() -> None:
    """Write the table, and say how many methods it has."""
    table = methods()
    TABLE.write_text(as_toml(table), encoding="utf-8")
    print(f"{TABLE.name}: {len(table['objectives'])} objectives, {len(table['advantages'])} advantages")


def methods() -> Table:
    """Return the facts of each objective and each advantage that differ from the defaults, by its name.

    With them are the options that an advantage has in the conventions of each library.
    """
    return {
        "objectives": {name: facts_of_objective(function) for name, function in marked(objectives, ObjectiveMark)},
        "advantages": {name: facts_of_advantage(function) for name, function in marked(advantages, AdvantageMark)},
        "libraries": {name: convention.advantage for name, convention in CONVENTIONS.items()},
    }


def marked(package: ModuleType, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield each function of a package that has a mark of a kind, and its name in recipes."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(info.name)).values():
            if isinstance(getattr(value, "mark", None), kind) and value.__module__ == info.name:
                yield value.name_in_recipes, value


def facts_of_objective(preset: Any) -> dict[str, Any]:
    """Return the mark of an objective, and what it says itself once it is built."""
    required = [each.name for each in inspect.signature(preset).parameters.values() if each.default is each.empty]
    built = preset(**dict.fromkeys(required, 1))
    return written(
        ObjectiveFacts(
            code=code_of(preset),
            is_composed=isinstance(built, ComposedObjective),
            has_ratio=has_ratio(built),
            from_engine=isinstance(built, ComposedObjective) and built.bypass,
            from_teacher=built.requires.needs_teacher,
            **asdict(preset.mark),
        )
    )


def facts_of_advantage(function: Any) -> dict[str, Any]:
    """Return the mark of an advantage, what it requires, and why no group can be asked about it."""
    takes_batch = next(iter(inspect.signature(function).parameters)) == "batch"
    unless = getattr(function, "requires_unless", {})
    return written(
        AdvantageFacts(
            code=code_of(function),
            requires=names_of(getattr(function, "requires", Requires())),
            requires_unless={option: names_of(required) for option, required in unless.items()},
            cannot_be_asked=cannot_be_asked(function if takes_batch else per_token(function)),
            **asdict(function.mark),
        )
    )


def code_of(function: Callable[..., Any]) -> str:
    """Return where a function is: "package.module:name"."""
    return f"{function.__module__}:{function.__name__}"


def names_of(required: Requires) -> tuple[str, ...]:
    """Return the names of the requirements."""
    return tuple(name for name, is_required in asdict(required).items() if is_required)


def written(facts: ObjectiveFacts | AdvantageFacts) -> dict[str, Any]:
    """Return the facts that differ from the defaults, where the code is first."""
    defaults = asdict(type(facts)())
    differing = {name: value for name, value in asdict(facts).items() if value != defaults[name]}
    return {"code": facts.code, **differing}


def as_toml(table: Table) -> str:
    """Return the text of the file. JSON writes names, texts, numbers and lists of texts as TOML does."""
    lines = [HEAD]
    for kind, rows in table.items():
        for name, facts in rows.items():
            lines.append(f"\n[{kind}.{name}]\n")
            lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in dotted(facts)]
    return "".join(lines)


def dotted(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts, those of an inner table with dotted keys."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", of_inner) for inner, of_inner in value.items())
        else:
            yield key, value


if __name__ == "__main__":
    main()
