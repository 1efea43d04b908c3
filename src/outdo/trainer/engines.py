"""Open the engine that a recipe or a command names: the only place where one is chosen."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from outdo.config.engines import ACROSS_UPDATES, RAY, engine_mistakes, environment_mistakes, is_separate
from outdo.config.file import read_piece
from outdo.config.names import BUILTIN_ENGINE, ENGINES
from outdo.config.recipe import Piece, Recipe
from outdo.distributed.ray_cluster import joins
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.attention.forward import Forward
from outdo.models.device import choose_device
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.builtin.multiprocess import MultiprocessEngine
from outdo.rollouts.engines.builtin.probe import TOLERANCE, SamplingChoice
from outdo.rollouts.engines.builtin.processes import BuiltinProcesses
from outdo.rollouts.engines.builtin.ray_actors import RayActors
from outdo.rollouts.engines.builtin.replicated import ReplicatedEngine
from outdo.rollouts.engines.on_first import EngineOnFirst, OnFirst
from outdo.rollouts.engines.proof import BFLOAT16, FLOAT32, SEQUENCES, Bound, Proof
from outdo.rollouts.engines.separate import RestartableEngine, SeparateEngine
from outdo.rollouts.engines.vllm.engine import VllmEngine
from outdo.rollouts.engines.vllm.process import ProcessServer
from outdo.trainer.progress_bar import Count
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve
from outdo.utils.world import ALONE, World

OF_THE_RUN = ("max_difference", ACROSS_UPDATES)
"""Options of an engine that are not its own."""

BUILTIN = BuiltinEngine | MultiprocessEngine | ReplicatedEngine | BuiltinProcesses
"""The ways in which the built-in engine runs."""


def named_engine(argument: str | None, recipe: Recipe | None = None) -> Piece:
    """Return the engine that `--engine` names, or else that of the run's recipe, or else the built-in one.

    `argument` is a name, or a table in TOML such as `{name = "vllm", python = "..."}`. Raises `UserError` with what is
    wrong with it, and with its environment, before any model is loaded.
    """
    if argument is not None:
        piece = read_piece("--engine", argument, '{name = "vllm", python = ".venv-vllm/bin/python"}')
    else:
        piece = Piece(name=BUILTIN_ENGINE) if recipe is None else recipe.engine
    mistakes = list(engine_mistakes(piece)) or [*environment_mistakes(piece), *device_mistakes(piece, "auto")]
    if mistakes:
        raise UserError(mistakes)
    return piece


def open_engine(
    piece: Piece, policy: Policy, *, seed: int = 0, on_first: OnFirst | None = None, world: World = ALONE
) -> Engine:
    """Return an engine that samples from `policy`, with its weights.

    The built-in engine samples in this process, or in every process of the policy's pool or replica. Every other one,
    and the built-in one in processes of its own, has a copy of the weights, and each delivery to it is proved. Beside
    several replicas it is the first one's; all of them have to call this together. With `on_first` that replica alone
    uses it from then on.

    Raises: EngineError if it does not start, and DeliveryError if it does not have the policy's weights.
    """
    if not is_separate(piece):
        if isinstance(policy.pool, WorkerPool) and len(policy.pool) > 1:
            return MultiprocessEngine(policy, policy.pool, seed=seed)
        engine = BuiltinEngine(policy, seed=seed)
        return engine if len(world) == 1 else ReplicatedEngine(engine, world)
    options = {name: value for name, value in piece.options.items() if name not in OF_THE_RUN}
    sequences = SEQUENCES
    if "url" in options:
        options.pop("dtype", None)
    if piece.name == BUILTIN_ENGINE:
        make = RayActors if options.pop("place", None) == RAY else BuiltinProcesses
        options = _of_processes(policy, world, elsewhere=make is RayActors and joins(), **options)
        sequences = max(SEQUENCES, len(options["devices"]))  # each process is proved
    else:
        make = resolve(ENGINES.get(piece.name, piece.name))
    proof = Proof(_bound(piece, policy.forward), sequences=sequences)
    separate = _beside(policy, partial(make, seed=seed, **options), proof, on_first, world)
    try:
        if on_first is None:
            separate.update_weights(policy)
        else:
            on_first.with_policy(separate.update_weights)
    except BaseException:
        separate.close()
        raise
    return separate


def _beside(
    policy: Policy,
    make: Callable[[PolicyView], RestartableEngine],
    proof: Proof,
    on_first: OnFirst | None,
    world: World,
) -> SeparateEngine:
    """Return an engine beside the trainer, or beside all replicas; with `on_first`, for the first one alone."""
    if len(world) == 1:
        return SeparateEngine(make(policy), proof)
    if on_first is None:
        return SeparateEngine(EngineOnFirst(make, policy, world), proof, quiet=not world.first)
    with policy.forward.gathered():
        return SeparateEngine(make(on_first.view), proof)


def _bound(piece: Piece, forward: Forward) -> Bound:
    """Return how far the log-probabilities of an engine may be from those of a policy with this forward pass."""
    precision = forward.precision_name
    bound = FLOAT32 if piece.options.get("dtype", precision) == precision == "float32" else BFLOAT16
    if piece.name == BUILTIN_ENGINE:  # it may be as far as where its way to sample was chosen
        bound = bound._replace(largest=max(bound.largest, TOLERANCE))
    bound = Bound(*map(forward.tolerance, bound))
    if (given := piece.options.get("max_difference")) is not None:
        largest = float(given)
        bound = Bound(largest, min(largest, max(bound.mean, largest / 10)))
    return bound


def device_mistakes(piece: Piece, trainer: str, *, replicas: int = 1) -> list[str]:
    """Return what is wrong on this machine with the devices of the built-in engine's processes.

    `trainer` is the name of the device that the policy is on; `replicas` is how many of them the run has.
    """
    if piece.name != BUILTIN_ENGINE or not is_separate(piece) or os.environ.get("RANK", "0") != "0":
        return []
    options, own = piece.options, choose_device(trainer)[0]
    if options.get("place") == RAY and joins():
        return []
    try:
        devices = _devices(own, options["processes"], options.get("devices"), replicas=_on_this_machine(replicas))
    except UserError as error:
        return list(error.problems)
    gpus = torch.cuda.device_count()
    found = [
        "cpu",
        *(["mps"] if torch.backends.mps.is_available() else []),
        *(f"cuda:{index}" for index in range(gpus)),
    ]
    return [
        f"engine.devices: this machine has no {device}; it has {', '.join(found)}"
        for device in devices
        if device not in found
    ]


def _of_processes(
    policy: Policy,
    world: World,
    *,
    processes: int,
    elsewhere: bool,
    devices: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of `BuiltinProcesses`. All processes together have at most the threads of the policy's.

    One of them has at most as many as one of the policy's, because the last bits may depend on their number. Those that
    are `elsewhere`, in a Ray cluster that runs already, have as many, and devices that Ray chooses.
    """
    if elsewhere:
        devices = [policy.forward.device.type] * processes
    own, replicas = torch.get_num_threads(), _on_this_machine(len(world))
    in_all = own * (len(policy.pool) if isinstance(policy.pool, WorkerPool) else replicas)
    return {
        "devices": _devices(policy.forward.device, processes, devices, replicas=replicas),
        "threads": own if elsewhere else max(1, min(own, in_all // processes)),
        "copy_frozen": policy.forward.sharding is not None,
        **options,
    }


def _on_this_machine(replicas: int) -> int:
    """Return how many of the replicas run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", replicas))


def _devices(trainer: torch.device, processes: int, devices: Sequence[str] | None, *, replicas: int) -> Sequence[str]:
    """Return a device for each process: the given ones, or else the GPUs after those of the trainer's replicas."""
    if devices is not None:
        return devices
    if trainer.type != "cuda":
        return [trainer.type] * processes
    first, found = replicas + (trainer.index or 0), torch.cuda.device_count()
    if first + processes > found:
        raise UserError(
            [
                f"engine.processes = {processes} needs as many GPUs after the trainer's, cuda:{first - 1}, and this "
                f'machine has {found} in all; name others, such as devices = ["cuda:0"] to share one'
            ]
        )
    return [f"cuda:{index}" for index in range(first, first + processes)]


def engine_metrics(engine: Engine) -> dict[str, float]:
    """Return the metrics of an engine with a copy of the weights; empty for one without."""
    return engine.metrics() if isinstance(engine, SeparateEngine) else {}


def replays_routes(engine: Engine, forward: Forward) -> tuple[bool, Sequence[str]]:
    """Return whether training uses the experts that sampled each token, and what the user should know about it.

    It does for a mixture model whose engine, or whose precision, makes other choices likely: in float32 the built-in
    engine and the trainer differ by the last bits of a score.
    """
    sampler = _sampler(engine)
    is_mixture = forward.routers is not None or forward.unreachable_routers
    if not is_mixture or (isinstance(sampler, BUILTIN) and not forward.autocast):
        return False, []
    if forward.routers is None:
        why = forward.unreachable_routers
    elif isinstance(sampler, VllmEngine):
        why = "the engine vllm does not return the experts that it has used"
    elif isinstance(sampler, BUILTIN) and not _continuous(sampler.choice):
        why = "model.generate does not return the experts that it has used"
    else:
        return True, ["routing: training uses the experts that sampled each token"]
    return False, [f"routing: training may use other experts than sampling, because {why}"]


def _sampler(engine: Engine) -> Engine:
    """Return the engine itself, without what delivers weights to it and shares it."""
    inner = engine.engine if isinstance(engine, SeparateEngine) else engine
    return inner.engine if isinstance(inner, EngineOnFirst) else inner


def choice_of(engine: Engine) -> SamplingChoice | None:
    """Return how the built-in engine samples; None if another engine does."""
    sampler = _sampler(engine)
    return sampler.choice if isinstance(sampler, BUILTIN) else None


def _continuous(choice: SamplingChoice | None) -> bool:
    return choice is not None and choice.way.continuous


def engine_notes(engine: Engine) -> Sequence[str]:
    """Return where an engine samples, and how its weights get there, if it does not share those of the policy."""
    sampler, notes = _sampler(engine), list[str]()
    if isinstance(engine, SeparateEngine):
        proof = engine.proof
        notes += [
            f"engine: its weights are proved after each update; now it is {proof.last:.2g} nats from the policy at "
            f"most (bound: {proof.bound.largest:g})"
        ]
    if isinstance(sampler, BuiltinProcesses):
        notes += [f"engine: processes on {', '.join(sampler.places)}, threads of each: {sampler.threads}"]
    if isinstance(sampler, VllmEngine) and isinstance(sampler.server, ProcessServer):
        why = sampler.server.merged_because
        notes += [f"engine: the adapter is delivered merged into the weights, because {why}"] if why else []
    return notes


def answers_of(engine: Engine) -> Count | None:
    """Return what counts the finished answers of an engine; None if it cannot be asked while it samples."""
    return (lambda: engine.answered) if isinstance(engine, BuiltinEngine) else None
