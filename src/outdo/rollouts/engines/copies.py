"""Policies for engines that sample while the policy is trained, or in another process: copied, or made whole."""

from dataclasses import replace

from outdo.models.adapter import on_same_base, with_own_frozen
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView


def copied_policy(policy: PolicyView) -> PolicySnapshot:
    """Return a snapshot with trained weights of its own; it shares those that are frozen."""
    model = on_same_base(policy.model)
    return replace(PolicySnapshot.of(policy), model=model, forward=policy.forward.with_model(model))


def whole_policy(policy: PolicyView, *, keep_frozen: bool = False) -> PolicySnapshot:
    """Return a snapshot whose model is not divided among replicas, and has its weights while they are gathered.

    With `keep_frozen`, frozen weights are copies, which it keeps.
    """
    sharding = policy.forward.sharding
    if sharding is None:
        return PolicySnapshot.of(policy)
    model = sharding.whole(policy.model)
    if keep_frozen:
        model = with_own_frozen(model)
    forward = policy.forward.with_model(model)
    forward.routers = policy.forward.routers
    return replace(PolicySnapshot.of(policy), model=model, forward=forward)
