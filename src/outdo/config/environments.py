"""The environment that a recipe may name: a list of functions, or a class in the user's code, and their options."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outdo.config.names import ENVIRONMENT_REWARD, TOOLS
from outdo.config.recipe import Piece, Recipe
from outdo.utils.errors import UserError, did_you_mean, nearest
from outdo.utils.imports import signature_of

SKYRL_ARGUMENTS = frozenset({"env_config", "extras"})
"""The arguments of a class of SkyRL-Gym: a configuration, which a recipe may set, and the row, which outdo gives."""

LIMITS = ("turns", "turn_tokens", "timeout")
"""The options of every environment: turns of the policy, tokens of one turn, seconds of one call."""


def check_environment(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the environment of a recipe; its code is read, and not run."""
    piece = recipe.environment
    if piece is None:
        if any(reward.name == ENVIRONMENT_REWARD for reward in recipe.rewards):
            yield f'rewards: "{ENVIRONMENT_REWARD}" needs an environment that gives rewards; set `environment`'
        return
    yield from environment_mistakes(piece)
    if any(reward.name == ENVIRONMENT_REWARD and reward.weight != 1 for reward in recipe.rewards):
        yield f'rewards: "{ENVIRONMENT_REWARD}" takes no weight; what the environment gives is added as it is'
    if recipe.data.template is not None:
        yield "data.template: an environment needs the model's own chat template; leave it out"
    if recipe.cluster.replicas > 1:
        yield f"cluster.replicas = {recipe.cluster.replicas}: an environment works with one replica only"


def environment_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the name and the options of an environment."""
    if piece.name != TOOLS and ":" not in piece.name:
        hint = did_you_mean(piece.name, [TOOLS]) or f"; expected {TOOLS} or file.py:Class"
        yield f'environment: nothing is called "{piece.name}"{hint}'
        return
    yield from _limit_mistakes(piece.options)
    options = {name: value for name, value in piece.options.items() if name not in LIMITS}
    yield from _tools_mistakes(options) if piece.name == TOOLS else _class_mistakes(piece.name, options)


def tool_functions(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions of the environment `tools`: one, or a list."""
    functions = options.get("functions", [])
    return [functions] if isinstance(functions, str) else list(functions)


def _limit_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    for name in LIMITS:
        if name not in options:
            continue
        value: Any = options[name]
        is_number = isinstance(value, int if name != "timeout" else int | float) and not isinstance(value, bool)
        if not is_number or value <= 0:
            expected = "a number above 0" if name == "timeout" else "a whole number of 1 or more"
            yield f"environment.{name}: expected {expected}, found {value!r}"


def _tools_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(options, ["functions"])
    functions = options.get("functions")
    if not functions or not isinstance(functions, str | Sequence) or not all(isinstance(f, str) for f in functions):
        yield f'environment.functions: expected "file.py:name", or a list of these, found {functions!r}'
        return
    for function in tool_functions(options):
        try:
            signature_of(function)
        except UserError as error:
            yield from (f"environment.functions: {mistake}" for mistake in error.problems)


def _class_mistakes(name: str, options: Mapping[str, Any]) -> Iterator[str]:
    try:
        signature = signature_of(name)
    except UserError as error:
        yield from (f"environment: {mistake}" for mistake in error.problems)
        return
    if not signature.accepts_any:
        yield from _unknown(options, signature.parameters)
    of_skyrl = SKYRL_ARGUMENTS if set(signature.parameters) >= SKYRL_ARGUMENTS else frozenset()
    needed = [each for each in signature.required if each not in of_skyrl]
    yield from (f"environment.{each}: {name} needs it" for each in needed if each not in options)


def _unknown(options: Mapping[str, Any], known: Sequence[str]) -> Iterator[str]:
    for name in options:
        if name not in known:
            similar = nearest(name, [*known, *LIMITS])
            accepted = f"did you mean {similar}?" if similar else f"it takes {', '.join([*known, *LIMITS])}"
            yield f"environment.{name}: unknown option; {accepted}"
GIVEN = ("base_url", "api_key", "http_client", "model")
