"""The environment that a recipe may name: a list of functions, a class or an agent in the user's code, with options.

Several of them are one environment, `by_row`: the row of a question names the one in which it is played.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.config.names import AGENT, BY_ROW, ENVIRONMENT_REWARD, TOOLS
from outdo.config.recipe import Piece, Recipe
from outdo.config.tools import tools_mistakes
from outdo.utils.errors import UserError, did_you_mean, nearest
from outdo.utils.imports import Signature, signature_of

SKYRL_ARGUMENTS = frozenset({"env_config", "extras"})
"""The arguments of a class of SkyRL-Gym: a configuration, which a recipe may set, and the row, which outdo gives."""

TINKER_ARGUMENTS = ("row", "tokenizer")
"""The arguments of what makes an environment of tinker: outdo gives them."""

LIMITS = ("turns", "turn_tokens", "timeout")
"""The options of an environment: turns of the policy, tokens of one turn, seconds of one call."""

AGENT_LIMITS = ("calls", "turn_tokens", "at_once", "timeout")
"""The options of an agent: its calls, tokens of one answer, agents at the same time, seconds of one episode."""

GIVEN = ("base_url", "api_key", "http_client", "model")
"""The arguments that an agent gets besides its row: a recipe cannot set them."""


BY_ROW_OPTIONS = ("environments", "column")
"""The options of `by_row`: a table of environments, and the column of the data that names one of them."""


@dataclass(frozen=True)
class RowEnvironments:
    """The environments that rows may name."""

    pieces: Mapping[str, Piece]
    column: str = "environment"

    def name_in(self, row: Mapping[str, Any]) -> str | None:
        """Return the name of the environment of a row; None if it names none, so that it asks for one answer.

        Raises `ValueError` for a name that no environment has.
        """
        name = row.get(self.column)
        if name in (None, ""):  # CSV has no null
            return None
        if name in self.pieces:
            return str(name)
        hint = did_you_mean(str(name), list(self.pieces)) or f"; expected {', '.join(self.pieces)}, or nothing"
        raise ValueError(f'column "{self.column}" names an environment "{name}" that the recipe does not have{hint}')


def row_environments(piece: Piece | None) -> RowEnvironments | None:
    """Return the environments that rows may name; None if the recipe has one for all questions, or none.

    Also None if they are no table of environments, which is a mistake of the recipe.
    """
    if piece is None or piece.name != BY_ROW:
        return None
    table, column = piece.options.get("environments"), piece.options.get("column", RowEnvironments.column)
    try:
        pieces = {name: Piece.model_validate(each) for name, each in dict(table or {}).items()}
    except (TypeError, ValueError):
        return None
    return RowEnvironments(pieces, column) if pieces and isinstance(column, str) and column else None


def all_environments(piece: Piece | None) -> list[Piece]:
    """Return the environments in which questions are played."""
    rows = row_environments(piece)
    single = [] if piece is None else [piece]
    return single if rows is None else list(rows.pieces.values())


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
    if recipe.data.prompt_template is not None:
        yield "data.template: an environment needs the model's own chat template; leave it out"


def agent_of(piece: Piece) -> str | None:
    """Return the function or class that an environment runs as an agent; None if it is another environment.

    An agent is told by its signature: a function with the parameter `base_url`, or an asynchronous one.
    """
    if piece.name == AGENT:
        return str(piece.options.get("run", ""))
    if ":" not in piece.name:
        return None
    try:
        signature = signature_of(piece.name)
    except UserError:
        return None
    is_agent = signature.is_async or (not signature.is_class and "base_url" in signature.parameters)
    return piece.name if is_agent else None


def options_of(piece: Piece) -> dict[str, Any]:
    """Return the options that are arguments of the user's code: those that outdo does not read itself."""
    own = LIMITS if agent_of(piece) is None else AGENT_LIMITS
    own = (*own, "run") if piece.name == AGENT else own
    return {name: value for name, value in piece.options.items() if name not in own}


def environment_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the name and the options of an environment."""
    if piece.name == BY_ROW:
        yield from _by_row_mistakes(piece)
        return
    if piece.name not in (TOOLS, AGENT) and ":" not in piece.name:
        known = [TOOLS, AGENT, BY_ROW]
        hint = did_you_mean(piece.name, known) or f"; expected {', '.join(known)} or file.py:Class"
        yield f'environment: nothing is called "{piece.name}"{hint}'
        return
    agent, options = agent_of(piece), options_of(piece)
    yield from _limit_mistakes(piece.options, LIMITS if agent is None else AGENT_LIMITS)
    if agent is not None:
        yield from _agent_mistakes(agent, options)
    else:
        yield from _tools_mistakes(options) if piece.name == TOOLS else _class_mistakes(piece.name, options)


def _by_row_mistakes(piece: Piece) -> Iterator[str]:
    yield from _unknown([each for each in piece.options if each not in BY_ROW_OPTIONS], BY_ROW_OPTIONS, ())
    column = piece.options.get("column", RowEnvironments.column)
    if not isinstance(column, str) or not column:
        yield f"environment.column: expected the name of a column, found {column!r}"
        return
    rows = row_environments(piece)
    if rows is None:
        expected = 'a table such as {calculator = {name = "tools", functions = "file.py:name"}, game = "file.py:Class"}'
        yield f"environment.environments: expected {expected}; found {piece.options.get('environments')!r}"
        return
    for name, each in rows.pieces.items():
        if each.name == BY_ROW:
            yield f"environment.environments.{name}: rows name one environment, which is not {BY_ROW} again"
            continue
        for mistake in environment_mistakes(each):
            yield f"environment.environments.{name}{mistake.removeprefix('environment')}"


def _limit_mistakes(options: Mapping[str, Any], limits: Sequence[str]) -> Iterator[str]:
    for name in limits:
        if name not in options:
            continue
        value: Any = options[name]
        is_number = isinstance(value, int if name != "timeout" else int | float) and not isinstance(value, bool)
        if not is_number or value <= 0:
            expected = "a number above 0" if name == "timeout" else "a whole number of 1 or more"
            yield f"environment.{name}: expected {expected}, found {value!r}"


def _tools_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(options, ["functions"], LIMITS)
    yield from tools_mistakes(options)


def _agent_mistakes(name: str, options: Mapping[str, Any]) -> Iterator[str]:
    if ":" not in name:
        yield f'environment.run: expected "file.py:function" or "file.py:Class", found {name!r}'
        return
    try:
        signature = signature_of(name)
    except UserError as error:
        yield from (f"environment: {mistake}" for mistake in error.problems)
        return
    if signature.is_class:
        yield from _option_mistakes(name, options, signature, signature.parameters, AGENT_LIMITS)
        return
    if not signature.parameters:
        yield f"environment: {name} has no parameter for the row; expected run(row, *, base_url, ...)"
    yield from (f"environment.{each}: outdo sets it itself" for each in options if each in GIVEN)
    own = [each for each in signature.parameters[1:] if each not in GIVEN]
    yield from _option_mistakes(name, options, signature, own, AGENT_LIMITS)


def _class_mistakes(name: str, options: Mapping[str, Any]) -> Iterator[str]:
    try:
        signature = signature_of(name)
    except UserError as error:
        yield from (f"environment: {mistake}" for mistake in error.problems)
        return
    yield from _option_mistakes(name, options, signature, signature.parameters, LIMITS)


def _option_mistakes(
    name: str, options: Mapping[str, Any], signature: Signature, own: Sequence[str], limits: Sequence[str]
) -> Iterator[str]:
    """Yield which options the user's code does not take, of its parameters `own`, and which it needs."""
    if not signature.accepts_any:
        yield from _unknown([each for each in options if each not in GIVEN or each in own], own, limits)
    of_skyrl = SKYRL_ARGUMENTS if set(own) >= SKYRL_ARGUMENTS else frozenset()
    needed = [each for each in signature.required if each in own and each not in (*of_skyrl, *TINKER_ARGUMENTS)]
    yield from (f"environment.{each}: {name} needs it" for each in needed if each not in options)


def _unknown(options: Iterable[str], known: Sequence[str], limits: Sequence[str]) -> Iterator[str]:
    for name in options:
        if name not in known:
            similar = nearest(name, [*known, *limits])
            accepted = f"did you mean {similar}?" if similar else f"it takes {', '.join([*known, *limits])}"
            yield f"environment.{name}: unknown option; {accepted}"
