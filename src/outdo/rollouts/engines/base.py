"""The interface of an engine, and the view of a policy that it gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.models.adapter import on_same_base, with_own_frozen
from outdo.models.attention.forward import Forward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.rng import Stream
from outdo.utils.world import World

Item = TypeVar("Item")
Played = TypeVar("Played")


class Engine(Protocol):
    """Samples completions from a policy: in this process, or in another one that has a copy of the weights.

    Any class with these members is an engine. Each method raises `EngineError` if the engine fails.
    """

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights that it samples from."""
        ...

    def update_weights(self, policy: "PolicyView") -> None:
        """Sample from the current weights of this policy from now on.

        An engine with a copy of the weights reads them from `policy.model`, or the adapter alone if it has one.
        """
        ...

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence.

        These are compared with those of the policy, to prove that the engine has its weights.
        """
        ...

    def health(self) -> None:
        """Raise `EngineError` unless the engine can answer."""
        ...

    def close(self) -> None:
        """Release what the engine holds, such as a process."""
        ...


@runtime_checkable
class Describes(Protocol):
    """What an engine has besides if the user should know something about it when it is open."""

    def notes(self) -> list[str]:
        """Return lines about where the engine samples, and how its weights get there."""
        ...


def notes_of(engine: Engine) -> list[str]:
    """Return what the user should know about an engine, such as where it samples."""
    return engine.notes() if isinstance(engine, Describes) else []


@runtime_checkable
class Measures(Protocol):
    """What an engine has besides if it measures itself in each step."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last delivery of weights, and of all before it."""
        ...


def metrics_of(engine: Engine) -> dict[str, float]:
    """Return the metrics of an engine; empty for one that measures nothing."""
    return engine.metrics() if isinstance(engine, Measures) else {}


@runtime_checkable
class KeepsEpisodes(Protocol):
    """What an engine has besides if it keeps what it has read of an episode (`Request.episode`) for its next turn."""

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        """Drop what is kept of these episodes, which have ended."""
        ...


def end_episodes(engine: Engine, episodes: Sequence[Stream]) -> None:
    """Tell an engine that these episodes have ended, if it keeps something of them."""
    if episodes and isinstance(engine, KeepsEpisodes):
        engine.end_episodes(episodes)


@runtime_checkable
class DividesEpisodes(Protocol):
    """What an engine of several replicas has besides: it says which of them plays which episodes of several turns."""

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[["Engine", Sequence[Item]], list[Played]]
    ) -> list[Played]:
        """Return on every replica what `play` returns for all groups of episodes, in their order.

        Each replica that plays some of them calls `play` once, with an engine of its own that waits for no other
        replica. Everything that `play` returns is pickled.
        """
        ...


def divide_episodes(
    engine: Engine, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[Played]]
) -> list[Played]:
    """Return what `play` returns for all groups of episodes: of one process, or of all replicas, in order."""
    return engine.divide_episodes(groups, play) if isinstance(engine, DividesEpisodes) else play(engine, groups)


class PolicyView(Protocol):
    """What an engine may read of a policy."""

    @property
    def forward(self) -> Forward: ...
    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...
    @property
    def version(self) -> int:
        """The number of optimiser steps that the weights have had."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def context(self) -> int | None:
        """The largest number of tokens of prompt and answer together; None if the model sets no limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySnapshot:
    """The attributes of a policy at one time, fit for pickling. `of` shares the weights with it, `copied` does not."""

    forward: Forward
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    version: int
    end_ids: frozenset[int]
    context: int | None

    @classmethod
    def of(cls, policy: PolicyView) -> "PolicySnapshot":
        return cls(
            forward=policy.forward,
            model=policy.model,
            tokenizer=policy.tokenizer,
            version=policy.version,
            end_ids=policy.end_ids,
            context=policy.context,
        )

    @classmethod
    def whole(cls, policy: PolicyView, *, keep_frozen: bool = False) -> "PolicySnapshot":
        """Return a snapshot whose model is not divided among replicas, and has its weights while they are gathered.

        With `keep_frozen`, frozen weights are copies, which it keeps.
        """
        sharding = policy.forward.sharding
        if sharding is None:
            return cls.of(policy)
        model = sharding.whole(policy.model)
        if keep_frozen:
            model = with_own_frozen(model)
        forward = policy.forward.with_model(model)
        forward.routers = policy.forward.routers
        return replace(cls.of(policy), model=model, forward=forward)

    @classmethod
    def copied(cls, policy: PolicyView) -> "PolicySnapshot":
        """Return a snapshot with trained weights of its own; it shares those that are frozen."""
        model = on_same_base(policy.model)
        return replace(cls.of(policy), model=model, forward=policy.forward.with_model(model))


class PolicyOnFirst(Protocol):
    """A policy of several replicas, as an engine that only the first one uses reads it."""

    @property
    def view(self) -> PolicySnapshot:
        """The policy as a whole model."""
        ...

    @property
    def world(self) -> World:
        """The replicas."""
        ...

    def copied(self) -> PolicySnapshot | None:
        """Return a snapshot of the policy with trained weights of its own; None on the other replicas."""
        ...

    def with_policy(self, work: Callable[[PolicyView], Played]) -> Played:
        """Return on all replicas what `work` returns on the first one, for a policy with the newest weights."""
        ...

    def call(self, compute: Callable[[], Played]) -> Played:
        """Compute on the first replica alone; return the result, or raise its `EngineError`, on all."""
        ...
