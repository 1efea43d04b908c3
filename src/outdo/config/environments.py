"""The environment that a recipe may name: a list of functions, a class or an agent in the user's code, with options.

Several of them are one environment, `by_row`: the row of a question names the one in which it is played.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outdo.config.names import AGENT, BY_ROW, ENVIRONMENT_REWARD, TOOLS
from outdo.config.recipe import Piece, Recipe
from outdo.config.tools import tools_mistakes
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import ANYTHING, NATURAL, POSITIVE, Check, is_text, no_such_name, option_mistakes

SKYRL_ARGUMENTS = frozenset({"env_config", "extras"})
"""The arguments of a class of SkyRL-Gym: a configuration, which a recipe may set, and the row, which outdo gives."""

TINKER_ARGUMENTS = ("row", "tokenizer")
"""The arguments of what makes an environment of tinker: outdo gives them."""

LIMITS: Mapping[str, Check] = {"turns": NATURAL, "turn_tokens": NATURAL, "timeout": POSITIVE}
"""The options of an environment: turns of the policy, tokens of one turn, seconds of one call."""

AGENT_LIMITS = {**dict.fromkeys(("calls", "turn_tokens", "at_once"), NATURAL), "timeout": POSITIVE}
"""The options of an agent: its calls, tokens of one answer, agents at the same time, seconds of one episode."""

GIVEN: Mapping[str, str] = dict.fromkeys(("base_url", "api_key", "http_client", "model"), "every agent gets it")
"""The arguments that an agent gets besides its row: a recipe cannot set them."""

BY_ROW_OPTIONS: Mapping[str, Check] = {
    "environments": ANYTHING,
    "column": (is_text, "the name of a column"),
}
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
        yield no_such_name("environment", piece.name, [TOOLS, AGENT, BY_ROW], own="file.py:Class")
        return
    if piece.name == TOOLS:
        yield from option_mistakes("environment", TOOLS, piece.options, checks={"functions": ANYTHING, **LIMITS})
        yield from tools_mistakes(piece.options)
    else:
        yield from _code_mistakes(piece, agent_of(piece))


def _by_row_mistakes(piece: Piece) -> Iterator[str]:
    yield from option_mistakes("environment", BY_ROW, piece.options, checks=BY_ROW_OPTIONS)
    rows = row_environments(piece)
    if rows is None and is_text(piece.options.get("column", RowEnvironments.column)):
        expected = 'a table such as {calculator = {name = "tools", functions = "file.py:name"}, game = "file.py:Class"}'
        yield f"environment.environments: expected {expected}; found {piece.options.get('environments')!r}"
    for name, each in rows.pieces.items() if rows else ():
        if each.name == BY_ROW:
            yield f"environment.environments.{name}: rows name one environment, which is not {BY_ROW} again"
            continue
        for mistake in environment_mistakes(each):
            yield f"environment.environments.{name}{mistake.removeprefix('environment')}"


def _code_mistakes(piece: Piece, agent: str | None) -> Iterator[str]:
    """Yield what is wrong with a class of the user, or with the function or class that is an agent."""
    name = piece.name if agent is None else agent
    if ":" not in name:
        yield f'environment.run: expected "file.py:function" or "file.py:Class", found {name!r}'
        return
    try:
        signature = signature_of(name)
    except UserError as error:
        yield from (f"environment: {mistake}" for mistake in error.problems)
        return
    given = {} if agent is None or signature.is_class else GIVEN
    if given and not signature.parameters:
        yield f"environment: {name} has no parameter for the row; expected run(row, *, base_url, ...)"
    takes = signature.without((*given, *signature.parameters[:1]) if given else ())
    takes = replace(takes, required=tuple(_needed(takes)))
    checks = LIMITS if agent is None else AGENT_LIMITS if piece.name != AGENT else {**AGENT_LIMITS, "run": ANYTHING}
    yield from option_mistakes("environment", name, piece.options, takes, own=True, checks=checks, given=given)


def _needed(takes: Signature) -> Iterator[str]:
    """Yield the parameters without a default that outdo does not fill for a class of another library."""
    of_skyrl = SKYRL_ARGUMENTS if {*takes.options} >= SKYRL_ARGUMENTS else ()
    yield from (each for each in takes.required if each not in (*of_skyrl, *TINKER_ARGUMENTS))
