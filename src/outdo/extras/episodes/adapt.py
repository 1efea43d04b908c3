"""Episodes written for another library: outdo recognises them by their methods, and they run unchanged.

| library | recognised by |
|---|---|
| TRL, `environment_factory` | `reset(**row)`, no `step`; other public methods are tools; `get_reward()` |
| SkyRL-Gym | `init(prompt)`, `step(action)`; made with `env_config` and `extras` |
| TextArena | `get_observation()`, `step(action)` |
| OpenRLHF | `reset(states)`, `step(states)` |
| gymnasium, with texts | `reset(seed, options)`, `step(action)` |
| tinker | `initial_observation()`, `step(action)`, or `make_envs()`; see `tinker.py` |

All but TRL's and tinker's read a turn as text, with its thinking and without the token that ends it (`reply_to_text`).
They say in every step whether the episode is done. One of SkyRL's or OpenRLHF's that is not, and leaves the policy
nothing to read, cannot go on here: it is truncated.
"""

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, cast

from outdo.extras.episodes.episode import Reply, awaited, number, row_of
from outdo.extras.episodes.tinker import TinkerEpisode, makes_tinker
from outdo.models.prompt_encoding import Message
from outdo.types import Prompt

TRL_METHODS = frozenset({"reset", "get_reward", "close"})
"""Methods of TRL's class that are not tools."""


def episode_maker(make: Callable[..., Any], options: Mapping[str, Any]) -> Callable[[], Any]:
    """Return what makes the episodes of `make`, a class or function of the user, with these options.

    Episodes of another library are made with what stands between them and outdo.
    """
    if callable(getattr(make, "init", None)) and callable(getattr(make, "step", None)):
        return partial(SkyrlEpisode, make, options)
    if makes_tinker(make):
        return partial(TinkerEpisode, make, options)
    return lambda: adapt(make(**options))


def adapt(episode: Any) -> Any:
    """Return an episode as outdo calls it: itself, or what stands between outdo and another library's."""
    has = {name for name in ("reply", "reset", "step", "get_observation") if callable(getattr(episode, name, None))}
    if "reply" in has or not has & {"reset", "get_observation"}:
        return episode
    if "step" not in has:
        return TrlEpisode(episode)
    if "get_observation" in has:
        return TextArenaEpisode(episode)
    first = next(iter(inspect.signature(episode.step).parameters), "")
    return OpenRlhfEpisode(episode) if first.startswith("state") else GymEpisode(episode)


def seed_of(prompt: Prompt) -> int:
    """Return the seed of an episode: the column `seed`, or else a number that is the same for all samples."""
    seed = prompt.columns.get("seed")
    if isinstance(seed, int):
        return seed
    return int.from_bytes(hashlib.sha256(prompt.id.encode()).digest()[:4], "big") // 2


def user(text: str) -> Message:
    """Return a text as a user's message, also one without text: an episode that is not done goes on."""
    return {"role": "user", "content": text}


class AdaptedEpisode:
    """An environment of another library, which is closed if it can be."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment

    def close(self) -> Any:
        """Close the environment."""
        close = getattr(self.environment, "close", None)
        return close() if close else None


class TrlEpisode(AdaptedEpisode):
    """An environment of TRL. `reset` gets the columns of the row, and `prompt` and `answer`."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        members = inspect.getmembers(environment, inspect.ismethod)
        self.tools: Sequence[Callable[..., Any]] = [
            method for name, method in members if name not in TRL_METHODS and not name.startswith("_")
        ]

    def begin(self, prompt: Prompt) -> str | Sequence[Message] | None:
        """Return what `reset` returns: text that is added to the last message of the prompt."""
        return self.environment.reset(**row_of(prompt))

    def final_reward(self) -> Any:
        """Return the reward of the environment, if it gives one."""
        get_reward = getattr(self.environment, "get_reward", None)
        return get_reward() if get_reward else None


class SkyrlEpisode(AdaptedEpisode):
    """An environment of SkyRL-Gym: `init` may add messages to the prompt, `step` returns messages and a reward.

    It is made when the episode begins, because its constructor gets the row.
    """

    rewards_turns = True

    def __init__(self, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
        super().__init__(None)
        self.make = make
        self.options = options

    def begin(self, prompt: Prompt) -> Sequence[Message]:
        """Make the environment, and return what `init` adds to the prompt."""
        config = _Config(self.options.get("env_config", {}))
        self.environment = self.make(**{**self.options, "env_config": config, "extras": row_of(prompt)})
        asked = [user(prompt.text)] if isinstance(prompt.text, str) else list(prompt.text)
        returned, *_ = self.environment.init([dict(message) for message in asked])
        messages = list(returned)
        if messages[: len(asked)] != asked:
            raise TypeError("init changed the prompt; outdo can only add messages to it")
        return messages[len(asked) :]

    def reply_to_text(self, text: str) -> Reply:
        """Return the answer of `step` to a turn."""
        output = self.environment.step(text)
        messages = [cast("Message", dict(message)) for message in output["observations"]]
        done, reward = bool(output["done"]), number(output.get("reward"))
        return Reply(messages=messages, reward=reward, done=done, truncated=not (done or messages))


class TextArenaEpisode(AdaptedEpisode):
    """A game of TextArena with one player. The first observation is added to the last message of the prompt.

    Games draw from Python's global random numbers. Each episode therefore has a state of its own, which is set while
    its game computes, one game at a time.
    """

    _one_at_a_time = Lock()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.game = environment  # without wrappers, which repeat earlier observations
        while hasattr(self.game, "env"):
            self.game = self.game.env
        self.player: Any = 0
        self.random: Any = None  # the state of the random numbers
        self.is_open = False  # a game that has not begun cannot be closed

    def begin(self, prompt: Prompt) -> str:
        """Begin the game, and return its first observation."""
        with self._own_random():
            self.environment.reset(num_players=1, seed=seed_of(prompt))
            self.is_open = True
            return f"\n\n{self._observation()}"

    def reply_to_text(self, text: str) -> Reply:
        """Make a move, and return what the player sees next."""
        with self._own_random():
            done, _ = self.environment.step(action=text)
            return Reply(done=True) if done else Reply(messages=[user(self._observation())])

    def final_reward(self) -> float | None:
        """End the game, and return the reward of the player; none if the game was not played to its end."""
        if not self.is_open:
            return None
        self.is_open = False
        rewards, *_ = self.environment.close()
        return None if rewards is None else number(rewards.get(self.player))

    def close(self) -> None:
        """End the game, if that has not happened."""
        if self.is_open:
            self.is_open = False
            self.environment.close()

    def _observation(self) -> str:
        """Return what the player sees, without his own moves."""
        self.player, seen = self.game.get_observation()
        return "\n".join(text for sender, text, _ in seen if sender != self.player)

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        with self._one_at_a_time:
            of_others = random.getstate()
            if self.random is not None:
                random.setstate(self.random)
            try:
                yield
            finally:
                self.random = random.getstate()
                random.setstate(of_others)


class OpenRlhfEpisode(AdaptedEpisode):
    """An agent of OpenRLHF. Its feedback is text that follows the turn as it is, without the chat template."""

    rewards_turns = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.observation = ""
        self.label: Any = None

    async def begin(self, prompt: Prompt) -> Sequence[Message]:
        """Reset the agent. Its prompt is that of the row: what `reset` returns in place of it is refused."""
        last = prompt.text if isinstance(prompt.text, str) else prompt.text[-1]["content"]
        self.observation, self.label = str(last), prompt.answer
        returned = await awaited(self.environment.reset({"observation": self.observation, "label": self.label}))
        observation = (returned or {}).get("observation", self.observation)
        if observation != self.observation:
            raise TypeError("reset returned another observation than the prompt; put it into the data")
        return ()

    async def reply_to_text(self, text: str) -> Reply:
        """Return the feedback of the agent."""
        states = {"observation_text": self.observation, "action_text": text, "label": self.label}
        output = await awaited(self.environment.step({**states, "sampling_params": None}))
        feedback = str(output.get("environment_feedback", ""))
        self.observation += text + feedback
        done, reward = bool(output.get("done")), number(output.get("rewards"))
        return Reply(text=feedback, reward=reward, done=done, truncated=not (done or feedback))


class GymEpisode(AdaptedEpisode):
    """An environment of gymnasium whose observations and actions are texts.

    `reset` gets the row as `options`. Its observation is added to the last message of the prompt.
    """

    rewards_turns = True

    def begin(self, prompt: Prompt) -> str:
        """Reset the environment, and return the first observation."""
        observation, _ = self.environment.reset(seed=seed_of(prompt), options=row_of(prompt))
        return f"\n\n{observation}"

    def reply_to_text(self, text: str) -> Reply:
        """Take a step, and return what is observed next."""
        observation, reward, terminated, truncated, _ = self.environment.step(text)
        done = bool(terminated or truncated)
        messages = () if done else [user(str(observation))]
        return Reply(messages=messages, reward=number(reward), done=done, truncated=bool(truncated and not terminated))


class _Config(dict[str, Any]):
    """A table whose entries are attributes too, as in OmegaConf; one that is missing is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        return _Config(value) if isinstance(value, dict) else value
