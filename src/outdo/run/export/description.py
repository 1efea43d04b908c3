"""What a run folder says about the run before its first step: the recipe, the environment and the history."""

from collections.abc import Sequence
from pathlib import Path

from outdo.config.file import dump
from outdo.config.recipe import Recipe
from outdo.models.base_model import sha256_of
from outdo.models.device import describe_hardware
from outdo.models.gguf_header import is_gguf
from outdo.models.inspect_folder import cached_snapshot
from outdo.run.assemble.assemble import Run
from outdo.run.folder.provenance import describe_environment
from outdo.run.folder.run_folder import RunFolder
from outdo.utils.atomic import write_json_atomically, write_text_atomically
from outdo.utils.hub_names import is_local


def describe_run(folder: RunFolder, run: Run, step: int, changes: Sequence[str]) -> None:
    """Write the recipe and the environment, and append to the history that the run continues after `step`."""
    recipe = run.recipe
    environment = describe_environment(
        seed=recipe.seed,
        threads=recipe.threads or 0,
        device=recipe.device,
        hardware=describe_hardware(recipe.device),
    )
    environment["revisions"] = _revisions(recipe) | dict(run.data.commits)
    environment["sandboxes"] = list(run.reward.sandboxes)
    folder.append_history({"after_step": step, **environment, "changes": list(changes)})
    write_text_atomically(folder.recipe, dump(recipe))
    write_json_atomically(folder.environment, environment)


def _revisions(recipe: Recipe) -> dict[str, str]:
    """Return the commit of each model that comes from the Hub, and the SHA-256 of each GGUF file."""
    of_critic = recipe.critic.options.get("path") if recipe.critic else None
    teachers = [teacher.model for teacher in recipe.teachers if teacher.is_folder]
    named = [str(name) for name in (recipe.model, recipe.reference.model, of_critic, *teachers) if name]
    files = {name: sha256_of(path) for name in named if is_gguf(path := Path(name).expanduser()) and path.is_file()}
    return files | {name: folder.name for name in named if not is_local(name) and (folder := cached_snapshot(name))}
