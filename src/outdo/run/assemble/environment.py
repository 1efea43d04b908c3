"""Open the environment that a recipe names: one answer and its reward, or one of the kinds of `outdo.config.names`."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from transformers import GenerationConfig, PreTrainedTokenizerBase

from outdo.config.environments import all_environments, environment_mistakes, kind_of, row_environments
from outdo.config.methods import facts_of_advantage
from outdo.config.names import ENVIRONMENTS
from outdo.config.recipe import Piece, Recipe
from outdo.data.prompts import ToolsOf
from outdo.models.inspect_folder import ModelFacts
from outdo.models.policy import Policy
from outdo.rewards.base import Reward
from outdo.rollouts.environments.base import Environment
from outdo.rollouts.environments.by_row import ByRow
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra


class EnvironmentKind(Protocol):
    """Opens the environments of one kind, whose recipes `outdo.config.environments` has checked.

    They may import the user's code, and raise `UserError` with everything that is wrong with it.
    """

    def tools(self, piece: Piece) -> Sequence[dict[str, Any]]:
        """Return the schemas of the tools, which are part of every prompt."""
        ...

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
    ) -> Environment:
        """Return the environment; see `open_environment`."""
        ...

    def rewards_turns(self, piece: Piece) -> bool:
        """Return whether the environment is known to give a reward to every turn."""
        ...

    def examine(
        self, piece: Piece, tokenizer: PreTrainedTokenizerBase, *, end_ids: Collection[int], system: str | None
    ) -> list[str]:
        """Return notes on the environment and on the chat template. Raises `UserError` where `open` would."""
        ...

    def notes(self, piece: Piece) -> list[str]:
        """Return notes on the environment for a run that is built."""
        ...


def tools_of(piece: Piece | None) -> ToolsOf:
    """Return what gives the schemas of the tools of a row's environment: they are part of its prompt."""
    rows = row_environments(piece)
    if rows is None:
        tools = () if piece is None else _kind(piece).tools(piece)
        return lambda row: tools
    by_name = {name: _kind(environment).tools(environment) for name, environment in rows.pieces.items()}
    return lambda row: by_name.get(rows.name_in(row) or "", ())


def open_environment(
    piece: Piece | None,
    policy: Policy,
    reward: Reward,
    *,
    system: str | None = None,
    special_tokens: bool = False,
    longest_prompt: int | None = None,
    max_failed: float = 0.5,
    step_timeout: float | None = None,
) -> Environment:
    """Return the environment that a recipe names, for this policy and this reward.

    `longest_prompt` is the largest number of tokens of a prompt that an agent writes. Special tokens in texts of the
    environment are ordinary text, unless `special_tokens` is true.

    Raises `UserError` if it cannot be used, or if the policy's chat template does not give its tokens exactly.
    """
    if piece is None:
        return SingleTurn(reward, max_failed=max_failed, step_timeout=step_timeout)
    in_prompts: dict[str, Any] = {"system": system, "special_tokens": special_tokens, "longest_prompt": longest_prompt}
    if rows := row_environments(piece):
        environments: dict[str | None, Environment] = {
            name: open_environment(environment, policy, reward, max_failed=1.0, step_timeout=step_timeout, **in_prompts)
            for name, environment in [*rows.pieces.items(), (None, None)]
        }
        return ByRow(environments, lambda prompt: rows.name_in(prompt.columns), max_failed=max_failed)
    return _kind(piece).open(piece, policy, reward, max_failed=max_failed, step_timeout=step_timeout, **in_prompts)


def examine_environment(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, facts: ModelFacts
) -> tuple[list[str], list[str]]:
    """Return what is wrong with the environment of a recipe, and notes on its tools and on the chat template."""
    piece = recipe.environment
    if piece is None:
        return [], []
    eos: Any = tokenizer.eos_token_id
    end_ids = {eos, *_configured_ends(facts), *recipe.sampling.stop_token_ids} - {None}
    rows = row_environments(piece)
    if rows is None:
        return _examine(piece, tokenizer, end_ids, recipe)
    mistakes: list[str] = []
    notes: dict[str, None] = {}  # what holds for several environments is said once
    for name, environment in rows.pieces.items():
        wrong, said = _examine(environment, tokenizer, end_ids, recipe)
        mistakes += [mistake.replace("environment", f"environment.environments.{name}", 1) for mistake in wrong]
        notes |= dict.fromkeys(line.replace("environment:", f"environment {name}:", 1) for line in said)
    return mistakes, list(notes)


def _examine(
    piece: Piece, tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int], recipe: Recipe
) -> tuple[list[str], list[str]]:
    """Return what is wrong with one environment, and notes on it."""
    advantage = recipe.advantage.name
    try:
        kind = _kind(piece)
        if facts_of_advantage(advantage).loses_turn_rewards and kind.rewards_turns(piece):
            return [f"environment: {piece.name} rewards every turn, which {advantage} would lose: use turn_to_go"], []
        return [], kind.examine(piece, tokenizer, end_ids=end_ids, system=recipe.data.system)
    except UserError as error:
        return list(error.problems), []


def environment_notes(piece: Piece | None) -> list[str]:
    """Return notes on an environment: where programs run; what an agent is given, its limits and what is trained."""
    return list(
        dict.fromkeys(note for environment in all_environments(piece) for note in _kind(environment).notes(environment))
    )


def _kind(piece: Piece) -> EnvironmentKind:
    """Return what opens an environment. Raises `UserError` with everything that is wrong with its name and options."""
    if mistakes := list(environment_mistakes(piece)):
        raise UserError(mistakes)
    return load_extra(ENVIRONMENTS[kind_of(piece)].open, "environment")


def _configured_ends(facts: ModelFacts) -> set[int | None]:
    """Return the tokens that end an answer by the generation config of the model, if it has one."""
    if facts.folder is None:
        return set()
    try:
        config: Any = GenerationConfig.from_pretrained(facts.folder)
    except OSError:
        return set()
    return set(config.eos_token_id) if isinstance(config.eos_token_id, list) else {config.eos_token_id}
