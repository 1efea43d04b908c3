"""The setting `data.inputs`: a function that makes of a row what the model reads beside the tokens of its prompt."""

from collections.abc import Iterator

from outdo.config.engines import is_remote
from outdo.config.environments import all_environments, kind_of
from outdo.config.method_rules import check_piece
from outdo.config.names import AGENT, ULYSSES
from outdo.config.recipe import Recipe


def check_inputs(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the function, and what of the recipe works with tokens alone."""
    piece = recipe.data.inputs
    if piece is None:
        return
    yield from check_piece("data.inputs", piece, {}, called_with="row")
    if is_remote(recipe.engine) and ":" not in recipe.engine.name:
        yield "data.inputs: an engine with a copy of the weights samples from tokens alone; leave engine out"
    if recipe.attention.name == ULYSSES:
        yield f'data.inputs: attention = "{ULYSSES}" divides tokens alone; leave one of them out'
    if any(kind_of(environment) == AGENT for environment in all_environments(recipe.environment)):
        yield "data.inputs: an agent sends text alone; leave one of them out"
