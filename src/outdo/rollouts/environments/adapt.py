"""Episodes written for another library: outdo recognises them by their methods, and they run unchanged.

TRL's `environment_factory` is a class with `reset(**row)`, whose other public methods are tools, and `get_reward()`.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from outdo.models.prompt_encoding import Message
from outdo.types import Prompt

TRL_METHODS = frozenset({"reset", "get_reward", "close"})
"""Methods of TRL's class that are no tools."""


def adapt(episode: Any) -> Any:
    """Return an episode as outdo calls it: itself, or what stands between outdo and TRL's class."""
    is_trl = hasattr(episode, "reset") and not hasattr(episode, "reply") and not hasattr(episode, "step")
    return TrlEpisode(episode) if is_trl else episode


class TrlEpisode:
    """An environment of TRL. `reset` gets the columns of the row, and `prompt` and `answer`."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        members = inspect.getmembers(environment, inspect.ismethod)
        self.tools: Sequence[Callable[..., Any]] = [
            method for name, method in members if name not in TRL_METHODS and not name.startswith("_")
        ]

    def begin(self, prompt: Prompt) -> str | Sequence[Message] | None:
        """Return what `reset` returns: text that is added to the last message of the prompt."""
        return self.environment.reset(**{"prompt": prompt.text, "answer": prompt.answer, **prompt.columns})

    def final_reward(self) -> Any:
        """Return the reward of the environment, if it gives one."""
        get_reward = getattr(self.environment, "get_reward", None)
        return get_reward() if get_reward else None

    def close(self) -> Any:
        """Close the environment, if it can be closed."""
        close = getattr(self.environment, "close", None)
        return close() if close else None
