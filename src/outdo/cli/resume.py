"""`outdo resume`: continue a run, or an unfinished `outdo sft` or `outdo reward-model`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.cli.arguments import not_empty
from outdo.cli.processes import run_in_processes
from outdo.cli.reward_model import RewardModelSettings, run_reward_model
from outdo.cli.sft import SftSettings, run_sft
from outdo.config.file import load
from outdo.trainer.display import Display
from outdo.trainer.resume import resume
from outdo.trainer.supervised import SETTINGS, read_settings, unfinished_folder
from outdo.utils.errors import UserError
from outdo.utils.world import World

COMMANDS: Mapping[str, tuple[type[Any], Any]] = {
    "sft": (SftSettings, run_sft),
    "reward-model": (RewardModelSettings, run_reward_model),
}


def run_resume(
    folder: Path, overrides: list[str], display: Display, *, changed: bool, profile: bool, restarts: int = 0
) -> int:
    """Continue what makes `folder`: a run, or a model that is fine-tuned; return the exit status.

    A run is started again up to `restarts` times after a fault of the machine: see `outdo.distributed.launch`.
    """
    saved = folder / "recipe.toml"
    if saved.is_file():
        options = [name for name, given in (("--changed", changed), ("--profile", profile)) if given]

        def run(display: Display, world: World) -> int:
            return resume(folder, overrides, display, changed=changed, profile=profile, world=world)

        arguments = ["resume", str(folder), *overrides, *options]
        recipe = load(saved, overrides)
        return run_in_processes(
            recipe, folder, run, display, arguments=arguments, go_on=lambda: arguments, restarts=restarts
        )
    if not unfinished_folder(folder).is_dir():
        raise UserError([f"{folder}: no run is there (it has no recipe.toml)"])
    unfinished = unfinished_folder(folder)
    if problem := not_empty(folder):  # killed between the last two of its operations, or somebody else's
        raise UserError([f"{problem}, or, if it holds the complete model, remove {unfinished}"])
    if overrides or profile or restarts:
        raise UserError([f"{folder}: the settings of `outdo sft` and `outdo reward-model` stay as they are on resume"])
    settings = read_settings(folder)
    command = settings.pop("command")
    if command not in COMMANDS:
        raise UserError([f"{unfinished / SETTINGS}: no command is called {command!r}"])
    kind, run_command = COMMANDS[command]
    try:
        parsed = kind(**settings)
    except TypeError as error:
        raise UserError([f"{unfinished / SETTINGS}: not the settings of `outdo {command}`: {error}"]) from None
    return run_command(parsed, folder, display, resumed=True, changed=changed)
