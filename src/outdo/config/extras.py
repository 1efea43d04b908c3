"""The parts of outdo that settings need, besides those that a recipe names: each of them may have been deleted."""

from collections.abc import Callable, Iterator, Mapping

from outdo.config.names import ASYNCHRONOUS, REPLICATED_ENGINE
from outdo.config.recipe import Recipe
from outdo.utils.extras import missing_extra

NEEDED_BY: Mapping[str, tuple[str, Callable[[Recipe], bool]]] = {
    "train.max_staleness": (ASYNCHRONOUS, lambda recipe: recipe.train.max_staleness > 0),
    "cluster.replicas": (REPLICATED_ENGINE, lambda recipe: recipe.cluster.world_size > 1),
}
"""Settings, the code that each needs, and whether a recipe uses it."""


def check_extras(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each setting whose part of outdo was deleted."""
    for key, (spec, uses) in NEEDED_BY.items():
        if uses(recipe) and (mistake := missing_extra(spec, key)):
            yield mistake
