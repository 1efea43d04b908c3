"""Environments of tinker, which read and write tokens: `Env`, and `EnvGroupBuilder`, which scores a group together.

Their observations are `ModelInput`s, or lists of token ids. Each has to begin with the tokens of the one before and of
the turn between them: a turn that was sampled is never replaced.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.extras.episodes.episode import Reply, awaited, number, row_of
from outdo.extras.episodes.template import Template
from outdo.types import Completion, Prompt
from outdo.utils.text import counted

GIVEN = ("row", "tokenizer")
"""The arguments that the class or function of the user gets, if it has parameters for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensWithLogprobs:
    """A turn of the policy, with the names of tinker."""

    tokens: list[int]
    logprobs: list[float]

    @property
    def maybe_logprobs(self) -> list[float]:
        """The log-probabilities, which are always known."""
        return self.logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """An observation, the turn after it and its reward, with the names of tinker."""

    ob: Any
    ac: TokensWithLogprobs
    reward: float
    episode_done: bool
    metrics: Mapping[str, Any]
    logs: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """An episode, with the names of tinker."""

    transitions: list[Transition] = field(default_factory=list)
    final_ob: Any = None


def makes_tinker(make: Callable[..., Any]) -> bool:
    """Return whether `make` is a class of tinker, or a function with the parameter `tokenizer`, which makes one."""
    if isinstance(make, type):
        return any(callable(getattr(make, name, None)) for name in ("initial_observation", "make_envs"))
    return callable(make) and "tokenizer" in inspect.signature(make).parameters


class TinkerEpisode:
    """An environment of tinker. It is made when its group begins, as it gets the row; see `GIVEN`."""

    rewards_turns = True

    def __init__(self, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.make = make
        self.options = options
        self.environment: Any = None
        self.builder: Any = None  # of the group, for the first of its episodes that began
        self.end_texts: frozenset[Any] = frozenset()  # what ends a turn of this model: token ids, and their texts
        self.tokens: list[int] = []  # all tokens before the turn
        self.trajectory = Trajectory()

    @staticmethod
    async def begin_group(episodes: "Sequence[TinkerEpisode]", prompt: Prompt, template: Template) -> None:
        """Make the environments of a group: one for each episode, or all of them by an `EnvGroupBuilder`.

        Raises `TypeError` if something else is made, and `ValueError` if the builder makes too few.
        """
        first, *others = episodes
        made = first._made(prompt, template)
        if callable(getattr(made, "make_envs", None)):
            first.builder = made
            environments = list(await made.make_envs())
        else:
            environments = [made, *(other._made(prompt, template) for other in others)]
        if len(environments) < len(episodes):
            number = counted(len(environments), "environment")
            raise ValueError(f"make_envs made {number} for {counted(len(episodes), 'sample')}")
        for episode, environment in zip(episodes, environments, strict=False):
            if not callable(getattr(environment, "initial_observation", None)):
                raise TypeError(f"expected an Env or an EnvGroupBuilder of tinker, found {type(environment).__name__}")
            episode.environment = environment
            episode.end_texts = frozenset({*template.ends, *template.ends.values()})

    async def begin_with_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens of the first observation: the prompt."""
        self.trajectory.final_ob, stop = await awaited(self.environment.initial_observation())
        self._check_stop(stop)
        self.tokens = _token_ids(self.trajectory.final_ob)
        return tuple(self.tokens)

    async def reply_to_tokens(self, turn: Completion) -> Reply:
        """Return what `step` makes of the tokens of a turn: its reward, and the tokens that follow it."""
        result = await awaited(self.environment.step(list(turn.token_ids)))
        reward, done = number(result.reward), bool(result.episode_done)
        self.trajectory.transitions.append(
            Transition(
                ob=self.trajectory.final_ob,
                ac=TokensWithLogprobs(tokens=list(turn.token_ids), logprobs=list(turn.logprobs)),
                reward=reward,
                episode_done=done,
                metrics=getattr(result, "metrics", {}),
                logs=getattr(result, "logs", {}),
            )
        )
        self.trajectory.final_ob = result.next_observation
        if done:
            return Reply(reward=reward, done=True)
        self._check_stop(result.next_stop_condition)
        before, self.tokens = [*self.tokens, *turn.token_ids], _token_ids(result.next_observation)
        if self.tokens[: len(before)] != before or len(self.tokens) == len(before):
            raise TypeError("the next observation does not add to the tokens so far; an episode is one conversation")
        return Reply(token_ids=self.tokens[len(before) :], reward=reward)

    @staticmethod
    async def group_rewards(episodes: "Sequence[TinkerEpisode]") -> list[Any] | None:
        """Return what `compute_group_rewards` gives to each episode; None without an `EnvGroupBuilder`."""
        compute = next(
            (episode.builder.compute_group_rewards for episode in episodes if episode.builder is not None), None
        )
        if compute is None:
            return None
        arguments = ([episode.trajectory for episode in episodes], [episode.environment for episode in episodes])
        wanted = len(inspect.signature(compute).parameters)  # earlier versions give the trajectories alone
        return [number(reward) for reward, _ in await awaited(compute(*arguments[:wanted]))]

    async def close(self) -> None:
        """Let the builder of the group clean up."""
        cleanup = getattr(self.builder, "cleanup", None)
        if cleanup is not None:
            await awaited(cleanup())

    def _made(self, prompt: Prompt, template: Template) -> Any:
        arguments = dict(zip(GIVEN, (row_of(prompt), template.tokenizer), strict=True))
        parameters = inspect.signature(self.make).parameters
        return self.make(**self.options, **{name: value for name, value in arguments.items() if name in parameters})

    def _check_stop(self, stop: Any) -> None:
        """Raise `ValueError` if turns are to end where turns of this model do not."""
        if other := [text for text in stop or () if text not in self.end_texts]:
            raise ValueError(f"the environment ends turns at {other}, and this model at its end tokens")


def _token_ids(observation: Any) -> list[int]:
    """Return the tokens of an observation."""
    return list(observation.to_ints() if hasattr(observation, "to_ints") else observation)
