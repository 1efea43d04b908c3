"""Open the engine that a recipe or a command names: the only place where one is chosen."""

import tomllib
from collections.abc import Sequence
from typing import Any

from outdo.config.engines import engine_mistakes, environment_mistakes
from outdo.config.names import BUILTIN_ENGINE, ENGINES
from outdo.config.recipe import Piece, Recipe
from outdo.distributed.replicas import Replicas
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.attention.forward import Forward
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.builtin.multiprocess import MultiprocessEngine
from outdo.rollouts.engines.builtin.probe import SamplingChoice
from outdo.rollouts.engines.builtin.replicated import ReplicatedEngine
from outdo.rollouts.engines.proof import BFLOAT16, FLOAT32, Bound, Proof
from outdo.rollouts.engines.separate import SeparateEngine
from outdo.rollouts.engines.vllm.engine import VllmEngine
from outdo.rollouts.engines.vllm.process import ProcessServer
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve


def named_engine(argument: str | None, recipe: Recipe | None = None) -> Piece:
    """Return the engine that `--engine` names, or else that of the run's recipe, or else the built-in one.

    `argument` is a name, or a table in TOML such as `{name = "vllm", python = "..."}`. Raises `UserError` with what is
    wrong with it, and with its environment, before any model is loaded.
    """
    if argument is not None:
        piece = _parse(argument)
    else:
        piece = Piece(name=BUILTIN_ENGINE) if recipe is None else recipe.engine
    mistakes = list(engine_mistakes(piece)) or environment_mistakes(piece)
    if mistakes:
        raise UserError(mistakes)
    return piece


def _parse(argument: str) -> Piece:
    try:
        value: Any = tomllib.loads(f"engine = {argument}")["engine"] if "{" in argument else argument
        return Piece.model_validate(value)
    except ValueError:
        example = '{name = "vllm", python = ".venv-vllm/bin/python"}'
        raise UserError([f"--engine: expected a name, or a table such as {example}, found {argument!r}"]) from None


def open_engine(piece: Piece, policy: Policy, *, seed: int = 0) -> Engine:
    """Return an engine that samples from `policy`, with its weights.

    The built-in engine samples in this process, or in every process of the policy's pool or replica. Every other one
    has a copy of the weights, and each delivery to it is proved.

    Raises: EngineError if it does not start, and DeliveryError if it does not have the policy's weights.
    """
    if piece.name == BUILTIN_ENGINE:
        if isinstance(policy.pool, WorkerPool) and len(policy.pool) > 1:
            return MultiprocessEngine(policy, policy.pool, seed=seed)
        engine = BuiltinEngine(policy, seed=seed)
        return ReplicatedEngine(engine, policy.pool) if isinstance(policy.pool, Replicas) else engine
    options = dict(piece.options)
    largest = options.pop("max_difference", None)
    dtype = options.get("dtype", policy.forward.precision_name)
    bound = FLOAT32 if dtype == policy.forward.precision_name == "float32" else BFLOAT16
    if largest is not None:
        bound = Bound(float(largest), min(float(largest), max(bound.mean, float(largest) / 10)))
    if "url" in options:
        options.pop("dtype", None)
    make = resolve(ENGINES.get(piece.name, piece.name))
    separate = SeparateEngine(make(policy, seed=seed, **options), Proof(bound))
    try:
        separate.update_weights(policy)
    except BaseException:
        separate.close()
        raise
    return separate


def replays_routes(engine: Engine, forward: Forward) -> tuple[bool, Sequence[str]]:
    """Return whether training uses the experts that sampled each token, and what the user should know about it.

    It does for a mixture model whose engine, or whose precision, makes other choices likely: in float32 the built-in
    engine and the trainer differ by the last bits of a score.
    """
    separate = isinstance(engine, SeparateEngine)
    is_mixture = forward.routers is not None or forward.unreachable_routers
    if not is_mixture or not (separate or forward.autocast):
        return False, []
    if forward.routers is None:
        why = forward.unreachable_routers
    elif separate and isinstance(engine.engine, VllmEngine):
        why = "the engine vllm does not return the experts that it has used"
    elif isinstance(engine, BuiltinEngine | MultiprocessEngine | ReplicatedEngine) and not _continuous(engine.choice):
        why = "model.generate does not return the experts that it has used"
    else:
        return True, ["routing: training uses the experts that sampled each token"]
    return False, [f"routing: training may use other experts than sampling, because {why}"]


def _continuous(choice: SamplingChoice | None) -> bool:
    return choice is not None and choice.way.continuous


def engine_notes(engine: Engine) -> Sequence[str]:
    """Return how an engine samples, if that is not the usual way."""
    if isinstance(engine, BuiltinEngine | MultiprocessEngine | ReplicatedEngine):
        choice = engine.choice
        if choice is None or choice.way.continuous:
            return []
        reason = f" ({'; '.join(choice.faults)})" if choice.faults else ""
        return [f"sampling: {choice.way.name}{reason}"]
    if not isinstance(engine, SeparateEngine):
        return []
    proof = engine.proof
    notes = [
        f"engine: its weights are proved after each update; now it is {proof.last:.2g} nats from the policy at most "
        f"(bound: {proof.bound.largest:g})"
    ]
    if isinstance(engine.engine, VllmEngine) and isinstance(engine.engine.server, ProcessServer):
        why = engine.engine.server.merged_because
        notes += [f"engine: the adapter is delivered merged into the weights, because {why}"] if why else []
    return notes
