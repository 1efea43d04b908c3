"""Policies for engines that sample while the policy is trained, or in another process: copied, or made whole."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from outdo.models.adapter import on_same_base, with_own_frozen
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.utils.world import World

Value = TypeVar("Value")


def copied_policy(policy: PolicyView) -> PolicySnapshot:
    """Return a snapshot with trained weights of its own; it shares those that are frozen."""
    model = on_same_base(policy.model)
    return replace(PolicySnapshot.of(policy), model=model, forward=policy.forward.with_model(model))


def whole_policy(policy: PolicyView, *, keep_frozen: bool = False) -> PolicySnapshot:
    """Return a snapshot whose model is not divided among replicas, and has its weights while they are gathered.

    With `keep_frozen`, frozen weights are copies, which it keeps.
    """
    sharding = policy.forward.sharding
    if not sharding.is_divided:
        return PolicySnapshot.of(policy)
    model = sharding.whole(policy.model)
    if keep_frozen:
        model = with_own_frozen(model)
    forward = policy.forward.with_model(model)
    forward.routers = policy.forward.routers
    return replace(PolicySnapshot.of(policy), model=model, forward=forward)


class PolicyOnFirstReplica(Protocol):
    """The policy of several replicas, for an engine that only the first one uses.

    Weights may be divided among the replicas. So all of them call each method together, and the first one gets whole
    weights, from which it then samples without the others.
    """

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

    def with_policy(self, work: Callable[[PolicyView], Value]) -> Value:
        """Return on all replicas what `work` returns on the first one, for a policy with the newest weights."""
        ...

    def call(self, compute: Callable[[], Value]) -> Value:
        """Compute on the first replica alone; return the result, or raise its `EngineError`, on all."""
        ...
