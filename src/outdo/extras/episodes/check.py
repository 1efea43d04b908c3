"""Check an environment that is a class in the user's code; the code is read, and not run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from outdo.config.environments import EnvironmentCheck
from outdo.config.recipe import Piece
from outdo.utils.errors import UserError
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import NATURAL, POSITIVE, Check, option_mistakes

SKYRL_ARGUMENTS = frozenset({"env_config", "extras"})
"""The arguments of a class of SkyRL-Gym: a configuration, which a recipe may set, and the row, which outdo gives."""

TINKER_ARGUMENTS = ("row", "tokenizer")
"""The arguments of what makes an environment of tinker: outdo gives them."""

LIMITS: Mapping[str, Check] = {"turns": NATURAL, "turn_tokens": NATURAL, "timeout": POSITIVE}
"""The options of episodes that outdo reads: turns of the policy, tokens of one turn, seconds of one call."""


def episode_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the class or function of the user that makes episodes, or with the options for it."""
    try:
        takes = signature_of(piece.name).without(())
    except UserError as error:
        yield from (f"environment: {mistake}" for mistake in error.problems)
        return
    takes = replace(takes, required=tuple(_needed(takes)))
    yield from option_mistakes("environment", piece.name, piece.options, takes, own=True, checks=LIMITS)


def _needed(takes: Signature) -> Iterator[str]:
    """Yield the parameters without a default that outdo does not fill for a class of another library."""
    of_skyrl = SKYRL_ARGUMENTS if {*takes.options} >= SKYRL_ARGUMENTS else ()
    yield from (name for name in takes.required if name not in (*of_skyrl, *TINKER_ARGUMENTS))


CHECK = EnvironmentCheck(episode_mistakes)
