"""Open an environment of several turns: a class in the user's code makes its episodes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.config.recipe import Piece
from outdo.extras.episodes.adapt import episode_maker
from outdo.extras.episodes.check import LIMITS
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Player
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import ToolBox
from outdo.models.policy import Policy
from outdo.rewards.base import Reward
from outdo.utils.errors import ModelError, UserError
from outdo.utils.imports import resolve
from outdo.utils.text import counted

TIMEOUT = 10.0
"""Seconds of one call of a tool or of an environment, where the recipe does not set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """The user's side of the episodes of a recipe."""

    make: Callable[[], Player]
    tools: Sequence[dict[str, Any]]  # the schemas, for the prompt
    turns: int = 8
    turn_tokens: int | None = None
    rewards_turns: bool = False  # whether every turn has a reward, as far as its class tells


def timeout_of(piece: Piece) -> float:
    """Return the seconds that one call of a tool or of the environment may take."""
    return float(piece.options.get("timeout", TIMEOUT))


def limits_of(piece: Piece) -> dict[str, Any]:
    """Return the limits of an episode that a recipe sets, besides that of one call."""
    return {name: piece.options[name] for name in ("turns", "turn_tokens") if name in piece.options}


def load_class(piece: Piece) -> Episodes:
    """Import the class that the environment of a recipe names, and begin one episode to learn its tools.

    Raises `UserError` with everything that is wrong with it.
    """
    options = {name: value for name, value in piece.options.items() if name not in LIMITS}
    make_episode, timeout = episode_maker(resolve(piece.name), options), timeout_of(piece)
    try:
        first = make_episode()
    except (Exception, SystemExit) as error:  # the user's class may raise anything
        raise UserError([f"environment: {piece.name} raised {type(error).__name__}: {error}"]) from error
    functions = getattr(first, "tools", ())
    if not isinstance(functions, list | tuple):
        raise UserError([f"environment: {piece.name}: tools: expected a list of functions, found {functions!r:.100}"])
    tools = ToolBox(functions)
    try:
        Player(first, tools, timeout=timeout).close()
    except Exception as error:
        fault = f"close raised {type(error).__name__}: {error}"
        raise UserError([f"environment: {piece.name}: {fault}; it is called before `begin` too"]) from error

    def player() -> Player:
        episode = make_episode()
        return Player(episode, tools.of(getattr(episode, "tools", ())), timeout=timeout)

    rewards_turns = getattr(first, "rewards_turns", False) is True
    return Episodes(make=player, tools=tools.schemas, rewards_turns=rewards_turns, **limits_of(piece))


class EpisodeKind:
    """Environments that are played in turns: `load` makes the episodes of a recipe, `notes` says what is unusual."""

    def __init__(
        self, load: Callable[[Piece], Episodes], notes: Callable[[Piece], list[str]] = lambda piece: []
    ) -> None:
        self.load = load
        self._notes = notes

    def tools(self, piece: Piece) -> Sequence[dict[str, Any]]:
        return self.load(piece).tools

    def open(
        self,
        piece: Piece,
        policy: Policy,
        reward: Reward,
        *,
        system: str | None,
        special_tokens: bool,
        longest_prompt: int | None,
        max_failed: float,
        step_timeout: float | None,
    ) -> Dialogue:
        """Return the environment. Raises `UserError` if the policy's chat template does not give its tokens exactly."""
        episodes = self.load(piece)
        written: dict[str, Any] = {"system": system, "special_tokens": special_tokens, "tools": episodes.tools}
        return Dialogue(
            episodes.make,
            chat_template(policy.tokenizer, end_ids=policy.end_ids, exact=True, **written),
            reward,
            turns=episodes.turns,
            turn_tokens=episodes.turn_tokens,
            context=policy.context,
            max_failed=max_failed,
            step_timeout=step_timeout,
        )

    def rewards_turns(self, piece: Piece) -> bool:
        """Return whether every turn has a reward, as far as is known before an episode is played."""
        return self.load(piece).rewards_turns

    def examine(
        self, piece: Piece, tokenizer: PreTrainedTokenizerBase, *, end_ids: Collection[int], system: str | None
    ) -> list[str]:
        """Return notes on the turns, the tools and the chat template. Raises `UserError` as `open` does."""
        episodes = self.load(piece)
        template = chat_template(tokenizer, end_ids=end_ids, system=system, tools=episodes.tools, exact=True)
        names = ", ".join(tool["function"]["name"] for tool in episodes.tools) or "none"
        turns = f"environment: at most {counted(episodes.turns, 'turn')}; tools: {names}"
        return [turns, *self.notes(piece), *template.notes]

    def notes(self, piece: Piece) -> list[str]:
        """Return what is unusual about the environment."""
        return self._notes(piece)


def chat_template(
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_ids: Collection[int],
    system: str | None,
    special_tokens: bool = False,
    tools: Sequence[dict[str, Any]] = (),
    exact: bool = False,
) -> Template:
    """Return the chat template of a model. Raises `UserError` if there is none, or if it has to be exact and is not."""
    try:
        template = Template(tokenizer, end_ids=end_ids, tools=tools, system=system, special_tokens=special_tokens)
        if exact:
            template.check()
    except ModelError as error:
        raise UserError([f"environment: {error}"]) from error
    return template


EPISODE = EpisodeKind(load_class)
