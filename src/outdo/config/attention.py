"""The attention that a recipe may name, and what it needs of the replicas and the model."""

from collections.abc import Iterator

from outdo.config.names import ATTENTIONS, ULYSSES
from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import ModelFacts
from outdo.utils.options import Check, is_natural, no_such_name, option_mistakes

REPLICAS: Check = (lambda value: is_natural(value, least=2), "a whole number of 2 or more")


def check_attention(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the attention of a recipe, whatever its model is."""
    name, options = recipe.attention.name, recipe.attention.options
    if name not in ATTENTIONS:
        yield no_such_name("attention", name, ATTENTIONS)
        return
    yield from option_mistakes("attention", name, options, checks={"replicas": REPLICAS} if name == ULYSSES else {})
    if name != ULYSSES:
        return
    replicas, share = recipe.cluster.world_size, options.get("replicas", recipe.cluster.world_size)
    if replicas == 1:
        yield f'attention = "{ULYSSES}": replicas share each sequence; set cluster.replicas to 2 or more'
    elif REPLICAS[0](share) and replicas % share:
        yield f"attention.replicas = {share}: does not divide cluster.replicas = {replicas}"


def sequence_replicas(recipe: Recipe) -> int:
    """Return how many replicas share each sequence; 1 if each of them computes sequences of its own."""
    all_of_them = recipe.cluster.world_size
    return int(recipe.attention.options.get("replicas", all_of_them)) if recipe.attention.name == ULYSSES else 1


def divided_heads(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence if the heads of a model cannot be divided among the replicas that share a sequence."""
    if any(check_attention(recipe)):
        return
    share = sequence_replicas(recipe)
    if facts.heads is not None and facts.heads % share:
        yield (
            f'attention = "{ULYSSES}": the {facts.heads} attention heads of {facts.name} cannot be divided by the '
            f"{share} replicas that share a sequence"
        )
