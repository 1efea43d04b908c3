"""The optional dependencies that a recipe uses, and what is known not to fit among them."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence

from outdo.config.engines import is_placed
from outdo.config.names import CLIENTS
from outdo.config.recipe import Piece, Recipe
from outdo.utils.packages import LEVELS, misfits

OPTIONAL: Mapping[str, Callable[[Recipe], bool]] = {
    "adapters": lambda recipe: recipe.train.adapter is not None,
    "int8": lambda recipe: "int8" in _stored(recipe),
    "8bit": lambda recipe: "nf4" in _stored(recipe) or recipe.optim.algorithm.name == "adamw8bit",
    "ray": lambda recipe: is_placed(recipe),
}
"""Groups of optional dependencies with many packages, and whether a recipe uses them. Each tracker has one, too."""


def _stored(recipe: Recipe) -> set[str]:
    """Return how frozen weights of a run are stored."""
    return {recipe.weights, *(teacher.weights for teacher in recipe.teachers)}


def package_faults(recipe: Recipe, *, adapter: bool = False) -> tuple[list[str], list[str]]:
    """Return errors and warnings: the packages that a run needs and that do not fit. No package is imported.

    `adapter` tells that its model is the folder of an adapter.
    """
    groups = {name for name, uses in OPTIONAL.items() if uses(recipe)} | ({"adapters"} if adapter else set())
    groups |= {piece.name for piece in recipe.track if piece.name in CLIENTS}
    by_level = {
        level: [f"packages: {misfit}" for misfit in misfits(groups) if misfit.level == level] for level in LEVELS
    }
    return by_level["error"], by_level["warning"]


def missing_clients(trackers: Sequence[Piece]) -> list[str]:
    """Return a sentence for each tracker whose client is not installed on this machine."""
    return [
        f'track: {piece.name} needs its client: pip install "outdo[{piece.name}]"'
        for piece in trackers
        if piece.name in CLIENTS and importlib.util.find_spec(piece.name) is None
    ]
