"""Open the engine that a recipe or a command names: the built-in one here, any other by `REMOTE_ENGINE`.

`outdo.extras.remote_engines.open` finds the other one in the table `ENGINES`, or in the file of a user.
"""

from collections.abc import Sequence

from outdo.config.engines import engine_mistakes, is_remote, machine_mistakes
from outdo.config.file import read_piece
from outdo.config.names import BUILTIN_ENGINE, REMOTE_DEVICES, REMOTE_ENGINE, REPLICATED_ENGINE
from outdo.config.recipe import Piece, Recipe
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.copies import PolicyOnFirstReplica
from outdo.run.progress_bar import Count
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra
from outdo.utils.world import ALONE, World


def named_engine(argument: str | None, recipe: Recipe | None = None) -> Piece:
    """Return the engine that `--engine` names, or else that of the run's recipe, or else the built-in one.

    `argument` is a name, or a table in TOML such as `{name = "vllm", python = "..."}`. Raises `UserError` with what is
    wrong with it, and with its environment, before any model is loaded.
    """
    if argument is not None:
        piece = read_piece("--engine", argument, '{name = "vllm", python = ".venv-vllm/bin/python"}')
    else:
        piece = Piece(name=BUILTIN_ENGINE) if recipe is None else recipe.engine
    mistakes = list(engine_mistakes(piece)) or [*machine_mistakes(piece), *device_mistakes(piece, "auto")]
    if mistakes:
        raise UserError(mistakes)
    return piece


def open_engine(
    piece: Piece,
    policy: Policy,
    *,
    seed: int = 0,
    first_replica: PolicyOnFirstReplica | None = None,
    world: World = ALONE,
) -> Engine:
    """Return an engine that samples from `policy`, with its weights.

    The built-in engine samples in this process, or in every process of the `world`. Every other one, and the built-in
    one in processes of its own, has a copy of the weights, and each delivery to it is proved. Beside several replicas
    it is the first one's; all of them call this together. With `first_replica` that one alone uses it from then on.

    Raises: EngineError if it does not start, and DeliveryError if it does not have the policy's weights.
    """
    if is_remote(piece):
        open_remote = load_extra(REMOTE_ENGINE, f'engine = "{piece.name}"')
        return open_remote(piece, policy, seed=seed, first_replica=first_replica, world=world)
    engine = BuiltinEngine(policy, seed=seed)
    return engine if len(world) == 1 else load_extra(REPLICATED_ENGINE, "cluster.replicas")(engine, world)


def device_mistakes(piece: Piece, trainer: str, *, replicas: int = 1) -> list[str]:
    """Return what is wrong on this machine with the devices of the built-in engine's processes.

    `trainer` is the name of the device that the policy is on; `replicas` is how many of them the run has.
    """
    if piece.name != BUILTIN_ENGINE or not is_remote(piece):
        return []
    return load_extra(REMOTE_DEVICES, "engine.processes")(piece, trainer, replicas=replicas)


def replays_routes(engine: Engine, forward: Forward, *, with_inputs: bool) -> tuple[bool, Sequence[str]]:
    """Return whether training uses the experts that sampled each token, and what the user should know about it.

    It does for a mixture model whose engine, or whose precision, makes other choices likely: in float32 the built-in
    engine and the trainer differ by the last bits of a score. Rows `with_inputs` are sampled by `model.generate`.
    """
    choice = engine.choice
    is_mixture = forward.routers is not None or forward.unreachable_routers
    if not is_mixture or (choice is not None and not forward.autocast):
        return False, []
    if forward.routers is None:
        why = forward.unreachable_routers
    elif not engine.returns_experts:
        why = "the engine does not return the experts that it has used"
    elif choice is not None and (with_inputs or not choice.mode.continuous):
        why = "model.generate does not return the experts that it has used"
    else:
        return True, ["routing: training uses the experts that sampled each token"]
    return False, [f"routing: training may use other experts than sampling, because {why}"]


def completions_of(engine: Engine) -> Count | None:
    """Return what counts the finished answers of an engine; None if it cannot be asked while it samples."""
    return None if engine.completed is None else lambda: engine.completed or (0, 0)
