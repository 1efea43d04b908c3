"""The policy of several replicas, for sampling on the first one while the others do something else.

In asynchronous sampling the engine, the environment and the rewards work in a thread of the first replica, where no
call to the others would have a place in the order of all calls. So they get a policy that the first replica has for
itself, and the answers are sent when they are used.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.rollouts.engines.copies import copied_policy, whole_policy
from outdo.utils.errors import EngineError
from outdo.utils.world import World

Value = TypeVar("Value")


class GatheredPolicy:
    """A `PolicyOnFirstReplica` that gathers the weights for each call.

    Only the first replica keeps a copy: `view` is the policy as a whole model, whose frozen weights are copies, and
    whose trained ones are there while they are gathered.
    """

    def __init__(self, policy: PolicyView, world: World) -> None:
        self.policy = policy
        self.world = world
        with policy.forward.gathered():
            self.view = whole_policy(policy, keep_frozen=world.first)

    def copied(self) -> PolicySnapshot | None:
        with self.policy.forward.gathered():
            return self._copied() if self.world.first else None

    def with_policy(self, work: Callable[[PolicyView], Value]) -> Value:
        if not self.policy.forward.sharding.is_divided:
            return on_first_replica(self.world, lambda: work(self.policy))
        copied = self.copied()

        def with_copy() -> Value:
            assert copied is not None, "the first replica has one"
            return work(copied)

        return on_first_replica(self.world, with_copy)

    def call(self, compute: Callable[[], Value]) -> Value:
        return on_first_replica(self.world, compute)

    def _copied(self) -> PolicySnapshot:
        return copied_policy(replace(self.view, version=self.policy.version))


def on_first_replica(world: World, call: Callable[[], Value]) -> Value:
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
