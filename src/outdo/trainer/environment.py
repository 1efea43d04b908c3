"""Build the environment that a recipe names: one answer and its reward, episodes of several turns, or an agent."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from outdo.config.environments import (
    AGENT_LIMITS,
    agent_of,
    all_environments,
    environment_mistakes,
    options_of,
    row_environments,
)
from outdo.config.names import TOOLS
from outdo.config.recipe import Piece, Recipe
from outdo.config.tools import tools_in
from outdo.data.prompts import ToolsOf
from outdo.models.inspect_folder import ModelFacts
from outdo.models.policy import Policy
from outdo.rewards.types import Reward
from outdo.rollouts.environments.adapt import episode_maker
from outdo.rollouts.environments.base import Environment
from outdo.rollouts.environments.by_row import ByRow
from outdo.rollouts.environments.dialogue import Dialogue
from outdo.rollouts.environments.episode import Player
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.rollouts.environments.template import Template
from outdo.rollouts.environments.tools import Tool, ToolBox
from outdo.trainer.tools import load_tools, tool_notes
from outdo.utils.errors import ModelError, UserError
from outdo.utils.imports import resolve

if TYPE_CHECKING:
    from outdo.rollouts.agents.agent import Agent

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
        options, timeout = options_of(piece), float(piece.options.get("timeout", TIMEOUT))
        functions: Sequence[Callable[..., Any] | Tool] = ()
        make: Callable[..., Any] = lambda: None  # noqa: E731
        if piece.name == TOOLS:
            functions = load_tools(tools_in(options), timeout)
            options = {}
        else:
            make = resolve(piece.name)
        make_episode = episode_maker(make, options)
        try:
            first = make_episode()
        except Exception as error:  # the user's class may raise anything
            raise UserError([f"environment: {piece.name} raised {type(error).__name__}: {error}"]) from error
        tools = ToolBox(functions or getattr(first, "tools", ()))
        Player(first, tools, timeout=timeout).close()

        def player() -> Player:
            episode = make_episode()
            return Player(episode, tools if functions else tools.of(getattr(episode, "tools", ())), timeout=timeout)

        turns, turn_tokens = piece.options.get("turns", 8), piece.options.get("turn_tokens")
        return cls(make=player, tools=tools.schemas, turns=turns, turn_tokens=turn_tokens)


def load_agent(piece: Piece) -> Callable[..., Any]:
    """Import the agent that a recipe names, with its options: a function, or the method `run` of a class.

    Raises `UserError` with everything that is wrong with it.
    """
    if mistakes := list(environment_mistakes(piece)):
        raise UserError(mistakes)
    name = str(agent_of(piece))
    found, options = resolve(name), options_of(piece)
    if not isinstance(found, type):
        return partial(found, **options) if options else found
    try:
        agent: Any = found(**options)
    except Exception as error:  # the user's class may raise anything
        raise UserError([f"environment: {name} raised {type(error).__name__}: {error}"]) from error
    if not callable(getattr(agent, "run", None)):
        raise UserError([f"environment: {name} has no method run(row, *, base_url, ...)"])
    return agent.run


def agent_limits(piece: Piece) -> dict[str, Any]:
    """Return the limits of an agent that a recipe sets."""
    return {name: piece.options[name] for name in AGENT_LIMITS if name in piece.options}


def agent_class() -> "type[Agent]":
    """Return `Agent`. Raises `UserError` if what it needs is not installed."""
    try:
        from outdo.rollouts.agents.agent import Agent
    except ModuleNotFoundError as error:
        raise UserError([f"environment: an agent needs {error.name}: pip install 'outdo[agents]'"]) from error
    return Agent


def tools_of(piece: Piece | None) -> ToolsOf:
    """Return what gives the schemas of the tools of a row's environment: they are part of its prompt."""
    rows = row_environments(piece)
    if rows is None:
        tools = _tools_of_one(piece)
        return lambda row: tools
    by_name = {name: _tools_of_one(each) for name, each in rows.pieces.items()}
    return lambda row: by_name.get(rows.name_in(row) or "", ())


def _tools_of_one(piece: Piece | None) -> Sequence[dict[str, Any]]:
    """Return the schemas of the tools of an environment; an agent names its own."""
    return () if piece is None or agent_of(piece) is not None else Episodes.load(piece).tools


def open_environment(
    piece: Piece | None,
    policy: Policy,
    reward: Reward,
    *,
    system: str | None = None,
    longest_prompt: int | None = None,
    max_failed: float = 0.5,
    step_timeout: float | None = None,
) -> Environment:
    """Return the environment that a recipe names, for this policy and this reward.

    `longest_prompt` is the largest number of tokens of a prompt that an agent writes.

    Raises `UserError` if it cannot be used, or if the policy's chat template does not give its tokens exactly.
    """
    failures: dict[str, Any] = {"max_failed": max_failed, "step_timeout": step_timeout}
    if piece is None:
        return SingleTurn(reward, **failures)
    if rows := row_environments(piece):
        limits = {"longest_prompt": longest_prompt, "max_failed": 1.0, "step_timeout": step_timeout}
        environments: dict[str | None, Environment] = {
            name: open_environment(each, policy, reward, system=system, **limits)
            for name, each in [*rows.pieces.items(), (None, None)]
        }
        return ByRow(environments, lambda prompt: rows.name_in(prompt.columns), max_failed=max_failed)
    failures["context"] = policy.context
    if agent_of(piece) is not None:
        run, limits = load_agent(piece), agent_limits(piece)
        template = _template(policy.tokenizer, end_ids=policy.end_ids, system=system)
        return agent_class()(run, template, reward, longest_prompt=longest_prompt, **limits, **failures)
    episodes = Episodes.load(piece)
    template = _template(policy.tokenizer, end_ids=policy.end_ids, tools=episodes.tools, system=system, check=True)
    turns, turn_tokens = episodes.turns, episodes.turn_tokens
    return Dialogue(episodes.make, template, reward, turns=turns, turn_tokens=turn_tokens, **failures)


def _template(tokenizer: PreTrainedTokenizerBase, *, check: bool = False, **options: Any) -> Template:
    """Return the chat template of a model. Raises `UserError` if there is none, or if it is checked and not exact."""
    try:
        template = Template(tokenizer, **options)
        if check:
            template.check()
    except ModelError as error:
        raise UserError([f"environment: {error}"]) from error
    return template


def examine_environment(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, facts: ModelFacts
) -> tuple[list[str], list[str]]:
    """Return what is wrong with the environment of a recipe, and notes on its tools and on the chat template."""
    piece = recipe.environment
    if piece is None:
        return [], []
    eos: Any = tokenizer.eos_token_id
    end_ids = {eos, *_configured_ends(facts), *recipe.sampling.stop_token_ids} - {None}
    options = {"end_ids": end_ids, "system": recipe.data.system}
    rows = row_environments(piece)
    if rows is None:
        return _examine(piece, tokenizer, options)
    mistakes: list[str] = []
    notes: dict[str, None] = {}  # what holds for several environments is said once
    for name, each in rows.pieces.items():
        wrong, said = _examine(each, tokenizer, options)
        mistakes += [mistake.replace("environment", f"environment.environments.{name}", 1) for mistake in wrong]
        notes |= dict.fromkeys(line.replace("environment:", f"environment {name}:", 1) for line in said)
    return mistakes, list(notes)


def _examine(
    piece: Piece, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return what is wrong with one environment, and notes on it; `options` are those of the chat template."""
    try:
        if agent_of(piece) is not None:
            template, notes = _template(tokenizer, **options), environment_notes(piece)
        else:
            episodes = Episodes.load(piece)
            template = _template(tokenizer, tools=episodes.tools, check=True, **options)
            names = ", ".join(tool["function"]["name"] for tool in episodes.tools) or "none"
            turns = f"environment: at most {episodes.turns} turns; tools: {names}"
            notes = [turns, *environment_notes(piece)]
    except UserError as error:
        return list(error.problems), []
    return [], [*notes, f"chat template: {template.properties}"]


def environment_notes(piece: Piece | None) -> list[str]:
    """Return notes on an environment: where programs run; what an agent is given, its limits and what is trained."""
    if row_environments(piece) is not None:
        return list(dict.fromkeys(note for each in all_environments(piece) for note in environment_notes(each)))
    if piece is not None and piece.name == TOOLS:
        return tool_notes(tools_in(piece.options))
    if piece is None or agent_of(piece) is None:
        return []
    run, parameters = load_agent(piece), inspect.signature(agent_class()).parameters
    limits = {name: parameters[name].default for name in ("calls", "at_once", "timeout")} | agent_limits(piece)
    return [
        f"environment: the agent {agent_of(piece)}{inspect.signature(run)}: at most {limits['calls']} calls and "
        f"{limits['timeout']:g} s an episode, {limits['at_once']} at once; all conversations of an episode are "
        "trained (agents/forks counts those besides the first)"
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
