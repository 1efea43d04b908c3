"""An engine beside several replicas: the first one holds it for all of them.

`EngineOnFirst` is for sampling that alternates with training: all replicas make each call of the engine together. In
asynchronous sampling the engine, the environment and the rewards work in a thread of the first replica, where no call
to the others would have a place in the order of all calls. So they get a policy that the first replica has for itself
(`OnFirst`), and the answers are sent when they are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from outdo.extras.remote_engines.remote import RestartableEngine
from outdo.rollouts.engines.base import Engine, PolicySnapshot, PolicyView
from outdo.rollouts.engines.builtin.probe import SamplingChoice, choice_of
from outdo.rollouts.engines.capabilities import notes_of, returns_experts
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.errors import EngineError
from outdo.utils.world import World

Value = TypeVar("Value")
Item = TypeVar("Item")


class EngineOnFirst:
    """Asks the engine of the first replica, and returns what it answers on every replica.

    All replicas make each call together. An `EngineError` of the engine is raised on all of them, so that they restart
    it, or end, together. Every replica has an `engine` that `make` returned, to know what it is and to decode by it;
    only that of the first one is started, gets weights and samples.
    """

    def __init__(self, make: Callable[[PolicyView], RestartableEngine], policy: PolicyView, world: World) -> None:
        self.world = world
        self.delivered_bytes = 0
        self._version: int | None = None
        self._forward = policy.forward
        with policy.forward.gathered():
            self._view = PolicySnapshot.whole(policy)
            self.engine = make(self._view)

    @property
    def choice(self) -> SamplingChoice | None:
        """How the built-in engine samples on the first replica; None for another engine."""
        return choice_of(self.engine)

    @property
    def returns_experts(self) -> bool:
        """Whether the engine returns the experts that it has used."""
        return returns_experts(self.engine)

    def notes(self) -> list[str]:
        """Return what the engine has to say."""
        return notes_of(self.engine)

    @property
    def version(self) -> int:
        """The number of optimiser steps of the weights that it samples from."""
        if self._version is None:
            raise EngineError("the engine has no weights yet: call `update_weights(policy)` first")
        return self._version

    def update_weights(self, policy: PolicyView) -> None:
        """Deliver the weights of this policy. Weights that are divided among the replicas have to be gathered."""
        self._version = None
        if policy.forward is not self._forward:
            self._forward, self._view = policy.forward, PolicySnapshot.whole(policy)
        view = replace(self._view, version=policy.version)

        def deliver() -> tuple[int, int]:
            self.engine.update_weights(view)
            return self.engine.version, getattr(self.engine, "delivered_bytes", 0)  # one of the user may lack it

        self._version, self.delivered_bytes = call_on_first(self.world, deliver)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order."""
        return call_on_first(self.world, lambda: self.engine.generate(requests, sampling))

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[Value]]
    ) -> list[Value]:
        """Return what `play` returns for all groups. The first replica plays them: it has the engine."""
        return call_on_first(self.world, lambda: play(self.engine, groups))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without special tokens."""
        return self.engine.decode(token_ids)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence."""
        return call_on_first(self.world, lambda: self.engine.score(sequences))

    def health(self) -> None:
        """Raise `EngineError` unless the engine can answer."""
        call_on_first(self.world, self.engine.health)

    def restart(self) -> None:
        """Start again, without weights."""
        self._version = None
        call_on_first(self.world, self.engine.restart)

    def close(self) -> None:
        """Release what the engine of this replica holds, without waiting for the others."""
        self.engine.close()


class OnFirst:
    """A policy of several replicas, as an engine of the first one reads it without the others.

    All replicas make each call together. Weights that are divided among them are gathered for it, and only the first
    replica keeps a copy: `view` is the policy as a whole model, whose frozen weights are copies, and whose trained ones
    are there while they are gathered.
    """

    def __init__(self, policy: PolicyView, world: World) -> None:
        self.policy = policy
        self.world = world
        with policy.forward.gathered():
            self.view = PolicySnapshot.whole(policy, keep_frozen=world.first)

    def copied(self) -> PolicySnapshot | None:
        """Return a snapshot of the policy with trained weights of its own; None on the other replicas."""
        with self.policy.forward.gathered():
            return self._copied() if self.world.first else None

    def with_policy(self, work: Callable[[PolicyView], Value]) -> Value:
        """Return on all replicas what `work` returns on the first one, for a policy with the newest weights."""
        if self.policy.forward.sharding is None:
            return call_on_first(self.world, lambda: work(self.policy))
        copied = self.copied()

        def with_copy() -> Value:
            assert copied is not None, "the first replica has one"
            return work(copied)

        return call_on_first(self.world, with_copy)

    def call(self, compute: Callable[[], Value]) -> Value:
        """Compute on the first replica alone; return the result, or raise its `EngineError`, on all."""
        return call_on_first(self.world, compute)

    def _copied(self) -> PolicySnapshot:
        return PolicySnapshot.copied(replace(self.view, version=self.policy.version))


def call_on_first(world: World, call: Callable[[], Value]) -> Value:
    """Call on the first replica alone; return the result, or raise its `EngineError`, on all."""

    def attempt() -> tuple[list[Value], EngineError | None]:
        try:
            return [call()], None
        except EngineError as error:
            return [], error

    values, error = world.from_first(attempt)
    if error is not None:
        raise error
    return values[0]
