"""List the settings of a recipe: its tables, its settings, and every value that it can hold."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from outdo.config.fields import Section
from outdo.config.recipe import Recipe


def sections() -> dict[str, type[Section]]:
    """Return the tables of a recipe by name, in order."""
    return {
        name: info.annotation
        for name, info in Recipe.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section) and not info.annotation.SHORT_FORM
    }


def settings() -> dict[str, FieldInfo]:
    """Return every setting by its dotted key, in the order of the recipe: `{"model": ..., "data.path": ..., ...}`."""
    tables = sections()

    def walk() -> Iterator[tuple[str, FieldInfo]]:
        yield from ((name, info) for name, info in Recipe.model_fields.items() if name not in tables)
        for name, table in tables.items():
            yield from ((f"{name}.{key}", info) for key, info in table.model_fields.items())

    return dict(walk())


def leaves() -> dict[str, FieldInfo]:
    """Return every value that a recipe can hold by its dotted key: `settings()` with each field of a nested table.

    `data.select` for example has three of them. The options of a piece are not settings of the recipe.
    """

    def walk(key: str, info: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
        table = table_in(info.annotation)
        if table is None:
            yield key, info
            return
        if table.SHORT_FORM:
            yield key, info
        for name, inner in table.model_fields.items():
            if name not in table.SHORT_FORM:
                yield from walk(f"{key}.{name}", inner)

    return dict(leaf for key, info in settings().items() for leaf in walk(key, info))


def table_in(annotation: Any) -> type[Section] | None:
    """Return the kind of table in an annotation such as `Selection | None` or `tuple[WeightedReward, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(table_in, get_args(annotation))), None)
