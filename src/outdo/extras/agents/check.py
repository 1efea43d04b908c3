"""Check an environment that is an agent; its code is read, and not run."""

from collections.abc import Iterator, Mapping

from outdo.config.environments import EnvironmentCheck
from outdo.config.names import AGENT
from outdo.config.recipe import Piece
from outdo.utils.errors import UserError
from outdo.utils.imports import signature_of
from outdo.utils.options import ANYTHING, NATURAL, POSITIVE, Check, option_mistakes

LIMITS: Mapping[str, Check] = {**dict.fromkeys(("calls", "turn_tokens", "at_once"), NATURAL), "timeout": POSITIVE}
"""The options that outdo reads: an agent's calls, tokens of one answer, agents at the same time, seconds of one."""

GIVEN: Mapping[str, str] = dict.fromkeys(("base_url", "api_key", "http_client", "model"), "every agent gets it")
"""The arguments that an agent gets besides its row: a recipe cannot set them."""


def code_of(piece: Piece) -> str:
    """Return the name of the function or class that is the agent: the option `run` of `agent`, or the name itself."""
    return str(piece.options.get("run", "")) if piece.name == AGENT else piece.name


def own_options(piece: Piece) -> Mapping[str, Check]:
    """Return the options that outdo reads itself; all others are arguments of the user's code."""
    return {**LIMITS, "run": ANYTHING} if piece.name == AGENT else LIMITS


def agent_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the function or class that is the agent, or with its options."""
    name = code_of(piece)
    if ":" not in name:
        yield f'environment.run: expected "file.py:function" or "file.py:Class", found {name!r}'
        return
    try:
        signature = signature_of(name)
    except UserError as error:
        yield from (f"environment: {mistake}" for mistake in error.problems)
        return
    filled = {} if signature.is_class else GIVEN
    if filled and not signature.parameters:
        yield f"environment: {name} has no parameter for the row; expected run(row, *, base_url, ...)"
    takes = signature.without((*filled, *signature.parameters[:1]) if filled else ())
    checks = own_options(piece)
    yield from option_mistakes("environment", name, piece.options, takes, own=True, checks=checks, given=filled)


CHECK = EnvironmentCheck(agent_mistakes)
