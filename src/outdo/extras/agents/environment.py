"""Open an environment that is an agent: a function, or the method `run` of a class."""

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.config.recipe import Piece
from outdo.extras.agents.agent import Agent
from outdo.extras.agents.check import LIMITS, code_of, own_options
from outdo.extras.episodes.environment import chat_template
from outdo.models.policy import Policy
from outdo.rewards.base import Reward
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve
from outdo.utils.text import counted


def load_agent(piece: Piece) -> Callable[..., Any]:
    """Import the agent that a recipe names, with its options: a function, or the method `run` of a class.

    Raises `UserError` with what is wrong with it.
    """
    name, filled = code_of(piece), own_options(piece)
    code = resolve(name)
    options = {name: value for name, value in piece.options.items() if name not in filled}
    if not isinstance(code, type):
        return partial(code, **options) if options else code
    try:
        agent: Any = code(**options)
    except (Exception, SystemExit) as error:  # the user's class may raise anything
        raise UserError([f"environment: {name} raised {type(error).__name__}: {error}"]) from error
    if not callable(getattr(agent, "run", None)):
        raise UserError([f"environment: {name} has no method run(row, *, base_url, ...)"])
    return agent.run


def limits_of(piece: Piece) -> dict[str, Any]:
    """Return the limits of an agent that a recipe sets."""
    return {name: piece.options[name] for name in LIMITS if name in piece.options}


class AgentKind:
    """Environments that are agents."""

    def tools(self, piece: Piece) -> Sequence[dict[str, Any]]:
        """Return no schemas: an agent names its tools in its calls."""
        return ()

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
    ) -> Agent:
        """Return the environment. Raises `UserError` if the policy has no chat template that can be used."""
        return Agent(
            load_agent(piece),
            chat_template(policy.tokenizer, end_ids=policy.end_ids, system=system, special_tokens=special_tokens),
            reward,
            longest_prompt=longest_prompt,
            context=policy.context,
            max_failed=max_failed,
            step_timeout=step_timeout,
            **limits_of(piece),
        )

    def rewards_turns(self, piece: Piece) -> bool:
        """Return False: an agent gives one reward, when it has ended."""
        return False

    def examine(
        self, piece: Piece, tokenizer: PreTrainedTokenizerBase, *, end_ids: Collection[int], system: str | None
    ) -> list[str]:
        """Return notes on the agent and on the chat template. Raises `UserError` as `open` does."""
        template = chat_template(tokenizer, end_ids=end_ids, system=system)
        return [*self.notes(piece), *template.notes]

    def notes(self, piece: Piece) -> list[str]:
        """Return a note on what the agent is given, its limits and what is trained."""
        run, parameters = load_agent(piece), inspect.signature(Agent).parameters
        limits = {name: parameters[name].default for name in ("calls", "at_once", "timeout")} | limits_of(piece)
        return [
            f"environment: the agent {code_of(piece)}{inspect.signature(run)}: at most "
            f"{counted(limits['calls'], 'call')} and {limits['timeout']:g} s an episode, {limits['at_once']} at once; "
            "all conversations of an episode are trained (agents/forks counts those besides the first)"
        ]


AGENT = AgentKind()
