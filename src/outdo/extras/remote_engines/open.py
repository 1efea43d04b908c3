"""Open an engine with a copy of the weights, whichever a recipe names: it is proved to have them."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from outdo.config.engines import OF_COPIES, RAY
from outdo.config.names import BUILTIN_ENGINE, ENGINES, RAY_ENGINE
from outdo.config.recipe import Piece
from outdo.extras.remote_engines.proof import BFLOAT16, FLOAT32, SEQUENCES, Bound, Proof
from outdo.extras.remote_engines.remote import Maker, RemoteEngine
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.choose_batching import TOLERANCE
from outdo.rollouts.engines.copies import PolicyOnFirstReplica
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra
from outdo.utils.imports import resolve
from outdo.utils.world import World


def open_remote_engine(
    piece: Piece, policy: Policy, *, seed: int, first_replica: PolicyOnFirstReplica | None, world: World
) -> RemoteEngine:
    """Return an engine with the weights of `policy`.

    Beside several replicas it is the first one's; all of them have to call this together. With `first_replica` that
    one alone uses it from then on.

    Raises: EngineError if it does not start, DeliveryError if it does not have the policy's weights, and UserError for
    code of the user that makes no engine.
    """
    make = _maker(piece, policy, seed=seed, world=world)
    sequences = max(SEQUENCES, piece.options.get("processes", 1))  # each process is proved
    proof = Proof(_bound(piece, policy.forward), sequences=sequences)
    with policy.forward.gathered():
        if first_replica is None:
            remote = RemoteEngine(make, policy, proof, world=world)
        else:
            remote = RemoteEngine(make, first_replica.view, proof)
    try:
        if first_replica is None:
            remote.update_weights(policy)
        else:
            first_replica.with_policy(remote.update_weights)
    except BaseException:
        remote.close()
        raise
    return remote


def _maker(piece: Piece, policy: Policy, *, seed: int, world: World) -> Maker:
    options = {name: value for name, value in piece.options.items() if name not in OF_COPIES}
    if piece.name not in ENGINES:
        return partial(_own_engine, piece.name, {"seed": seed, **options})
    spec = RAY_ENGINE if options.pop("place", None) == RAY else ENGINES[piece.name].open
    return load_extra(spec, "engine")(policy, world, seed=seed, **options)


def _own_engine(spec: str, options: Mapping[str, Any], policy: PolicyView) -> Engine:
    """Return the engine that a class or function of the user makes for a policy.

    Raises `UserError` unless it is an `Engine` with all that every engine has.
    """
    make = resolve(spec)
    if inspect.isabstract(make):
        missing = ", ".join(sorted(make.__abstractmethods__))
        raise UserError([f"engine: {spec} lacks what every outdo.Engine has: {missing}"])
    engine = make(policy, **options)
    if not isinstance(engine, Engine):
        kind = type(engine).__name__
        raise UserError([f"engine: {spec}: {kind} does not inherit from outdo.Engine, whose methods a run calls"])
    return engine


def _bound(piece: Piece, forward: Forward) -> Bound:
    """Return how far the log-probabilities of an engine may be from those of a policy with this forward pass."""
    precision = forward.precision_name
    bound = FLOAT32 if piece.options.get("dtype", precision) == precision == "float32" else BFLOAT16
    if piece.name == BUILTIN_ENGINE:  # it may be as far as where its way to sample was chosen
        bound = bound._replace(largest=max(bound.largest, TOLERANCE))
    bound = Bound(*map(forward.tolerance, bound))
    if (limit := piece.options.get("max_difference")) is not None:
        largest = float(limit)
        bound = Bound(largest, min(largest, max(bound.mean, largest / 10)))
    return bound
