"""Build the environment that a recipe names: one answer and its reward, or episodes of several turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from outdo.config.environments import LIMITS, environment_mistakes, tool_functions
from outdo.config.names import TOOLS
from outdo.config.recipe import Piece, Recipe
from outdo.models.inspect_folder import ModelFacts
from outdo.models.policy import Policy
from outdo.rewards.types import Reward
from outdo.rollouts.environments.adapt import episode_maker
from outdo.rollouts.environments.dialogue import Dialogue
from outdo.rollouts.environments.episode import Player
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.rollouts.environments.template import Template
from outdo.rollouts.environments.tools import ToolBox
from outdo.utils.errors import ModelError, UserError
from outdo.utils.imports import resolve

TIMEOUT = 10.0
"""Seconds of one call of a tool or of an environment, where the recipe does not set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """The user's side of the episodes of a recipe."""

    make: Callable[[], Player]
    tools: Sequence[dict[str, Any]]  # the schemas, for the prompt
    turns: int
    turn_tokens: int | None

    @classmethod
    def load(cls, piece: Piece) -> "Episodes":
        """Import the code that the environment of a recipe names, and begin one episode to learn its tools.

        Raises `UserError` with everything that is wrong with it.
        """
        if mistakes := list(environment_mistakes(piece)):
            raise UserError(mistakes)
        options = {name: value for name, value in piece.options.items() if name not in LIMITS}
        functions: Sequence[Callable[..., Any]] = ()
        make: Callable[..., Any] = lambda: None  # noqa: E731
        if piece.name == TOOLS:
            functions = [resolve(name) for name in tool_functions(options)]
            options = {}
        else:
            make = resolve(piece.name)
        make_episode = episode_maker(make, options)
        try:
            first = make_episode()
        except Exception as error:  # the user's class may raise anything
            raise UserError([f"environment: {piece.name} raised {type(error).__name__}: {error}"]) from error
        tools = ToolBox(functions or getattr(first, "tools", ()))
        timeout = float(piece.options.get("timeout", TIMEOUT))
        Player(first, tools, timeout=timeout).close()

        def player() -> Player:
            episode = make_episode()
            return Player(episode, tools.of(functions or getattr(episode, "tools", ())), timeout=timeout)

        turns, turn_tokens = piece.options.get("turns", 8), piece.options.get("turn_tokens")
        return cls(make=player, tools=tools.schemas, turns=turns, turn_tokens=turn_tokens)


def tools_of(piece: Piece | None) -> Sequence[dict[str, Any]]:
    """Return the schemas of the tools of an environment, which are part of every prompt."""
    return () if piece is None else Episodes.load(piece).tools


def open_environment(
    piece: Piece | None,
    policy: Policy,
    reward: Reward,
    *,
    system: str | None = None,
    max_failed: float = 0.5,
    step_timeout: float | None = None,
) -> SingleTurn | Dialogue:
    """Return the environment that a recipe names, for this policy and this reward.

    Raises `UserError` if it cannot be used, or if the policy's chat template does not give its tokens exactly.
    """
    if piece is None:
        return SingleTurn(reward, max_failed=max_failed, step_timeout=step_timeout)
    episodes = Episodes.load(piece)
    try:
        template = Template(policy.tokenizer, end_ids=policy.end_ids, tools=episodes.tools, system=system)
        template.check()
    except ModelError as error:
        raise UserError([f"environment: {error}"]) from error
    return Dialogue(
        episodes.make,
        template,
        reward,
        turns=episodes.turns,
        turn_tokens=episodes.turn_tokens,
        context=policy.context,
        max_failed=max_failed,
        step_timeout=step_timeout,
    )


def examine_environment(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, facts: ModelFacts
) -> tuple[list[str], list[str]]:
    """Return what is wrong with the environment of a recipe, and notes on its tools and on the chat template."""
    if recipe.environment is None:
        return [], []
    try:
        episodes = Episodes.load(recipe.environment)
        eos: Any = tokenizer.eos_token_id
        end_ids = {eos, *_configured_ends(facts), *recipe.sampling.stop_token_ids} - {None}
        template = Template(tokenizer, end_ids=end_ids, tools=episodes.tools, system=recipe.data.system)
        template.check()
    except UserError as error:
        return list(error.problems), []
    except ModelError as error:
        return [f"environment: {error}"], []
    names = ", ".join(tool["function"]["name"] for tool in episodes.tools) or "none"
    return [], [
        f"environment: at most {episodes.turns} turns; tools: {names}",
        f"chat template: {template.properties}",
    ]


def _configured_ends(facts: ModelFacts) -> set[int | None]:
    """Return the tokens that end an answer by the generation config of the model, if it has one."""
    if facts.folder is None:
        return set()
    try:
        config: Any = GenerationConfig.from_pretrained(facts.folder)
    except OSError:
        return set()
    return set(config.eos_token_id) if isinstance(config.eos_token_id, list) else {config.eos_token_id}
