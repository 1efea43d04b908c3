"""`outdo resume`: continue a run from its latest complete checkpoint, as the run that it was."""

import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from outdo.config.file import dump, load_saved
from outdo.config.paths import code_of, with_absolute_paths
from outdo.config.recipe import Recipe
from outdo.config.resume import accepted_changes, overrides_between
from outdo.data.splits import Questions, load_questions
from outdo.run.assemble.assemble import Run, assemble_run, identity_of
from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.state import Progress, restore
from outdo.run.display import Display
from outdo.run.evaluation import held_out_completions
from outdo.run.folder.begin import why_no_run
from outdo.run.folder.provenance import saved_revisions
from outdo.run.folder.run_folder import RunFolder
from outdo.run.training import own_folder, run_to_end
from outdo.run.watchers import open_watchers
from outdo.utils.errors import CheckpointError, UserError
from outdo.utils.run_names import run_folder
from outdo.utils.text import listed_steps
from outdo.utils.world import ALONE, World


def resume(
    folder: Path,
    overrides: list[str],
    display: Display,
    *,
    changed: bool = False,
    profile: bool = False,
    world: World = ALONE,
) -> int:
    """Continue a run from its latest complete checkpoint, or from the start if it has none; return the exit status.

    Settings, data or code that differ from those of the checkpoint are shown. If they would make it another run, they
    are refused, unless `changed`: then the history of the run folder lists them. All processes of a `world` have to
    call it.
    """
    if problem := why_no_run(folder):
        raise UserError([problem])
    recipe = load_saved(folder, overrides)
    with own_folder(folder, world) as own, ExitStack() as cleanup, RunFolder(own) as locked:
        newest, state, questions, changes = _found(recipe, folder, locked, display, changed=changed)
        watchers = open_watchers(recipe, own, display, world, profile=profile, cleanup=cleanup)
        run = assemble_run(
            recipe,
            model=newest.path if newest else None,
            questions=questions,
            folder=own,
            display=display,
            watchers=watchers,
            world=world,
        )
        progress = _restored(run, state, newest.path) if newest else Progress()
        display.say(f"resumed after step {progress.step} of {recipe.steps}")
        for line in _rewind(locked, run, progress):
            display.say(line)
        return run_to_end(locked, run, progress, display, cleanup, changes=changes)


def resume_by(recipe: Recipe, folder: Path, display: Display, *, profile: bool, world: World) -> int:
    """Continue the run in `folder` with the settings of `recipe`, as `resume` does; return the exit status.

    What the recipe leaves to outdo stays as it was chosen when the run was begun, and what may change in a run and is
    not named in the recipe stays as it is in the run folder.
    """
    overrides = overrides_between(load_saved(folder), with_absolute_paths(recipe), given=recipe)
    return resume(folder, overrides, display, profile=profile, world=world)


def _found(
    recipe: Recipe, folder: Path, locked: RunFolder, display: Display, *, changed: bool
) -> tuple[checkpoint.CheckpointInfo | None, Mapping[str, Any], Questions, list[str]]:
    """Return the newest checkpoint with its state, the data, and what differs from the run that was saved.

    All that the user should know before the run continues is printed.
    """
    newest = checkpoint.latest(folder / "checkpoints")
    state = checkpoint.load_state(newest.path) if newest else {}
    questions = load_questions(recipe, saved_revisions(folder))
    saved = state.get("identity") or {"recipe": dump(load_saved(folder))}
    now = identity_of(recipe, questions)
    mistakes = _impossible(recipe, folder, newest)
    try:
        changes = accepted_changes(_comparable(saved), _comparable(now), folder, changed=changed)
    except UserError as error:
        raise UserError([*mistakes, *error.problems]) from None
    if mistakes:
        raise UserError(mistakes)
    notices = [locked.notice] if locked.notice else []
    if code := code_of(recipe):
        notices.append(f"runs code that the recipe names: {', '.join(code)}")
    for line in [*notices, *changes]:
        display.say(line)
    for fault in newest.broken if newest else ():
        display.say(f"not used: {fault}")
    return newest, state, questions, changes


def _impossible(recipe: Recipe, folder: Path, newest: checkpoint.CheckpointInfo | None) -> list[str]:
    """Return what a resumed run cannot do: take back steps, or go on in another folder."""
    mistakes = []
    if newest and recipe.steps < newest.step:
        mistakes.append(
            f"steps = {recipe.steps}: the run has finished step {newest.step}; expected {newest.step} or more"
        )
    is_other = recipe.run is None or run_folder(recipe.run).resolve() != folder.resolve()
    if is_other and recipe.run != load_saved(folder).run:
        mistakes.append(
            f"run = {recipe.run}: the run continues in its folder {folder}; rename that folder, and resume it"
        )
    return mistakes


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity with its recipe, which is TOML, as `settings`."""
    settings = tomllib.loads(identity["recipe"])
    if settings.get("workers") == 1:  # as earlier versions write; it is one process, as now
        del settings["workers"]
    return {**identity, "settings": settings}


def _restored(run: Run, state: Mapping[str, Any], path: Path) -> Progress:
    try:
        return restore(run, state)
    except (KeyError, ValueError, RuntimeError) as error:
        run.close()
        raise CheckpointError(f"{path}: its state does not fit the recipe: {error}") from error


def _rewind(folder: RunFolder, run: Run, progress: Progress) -> list[str]:
    """Remove what was written after the step of the checkpoint, and checkpoints that need not be kept.

    Returns a line for what is missing before that step.
    """
    # A run that was killed after its last checkpoint makes no other one, which would remove these.
    checkpoint.prune(folder.checkpoints, run.recipe.checkpoint.keep, progress.best_step)
    missing = folder.rewind(progress.step)
    held_out_completions.drop_after(folder.path, progress.step)
    lines = [f"{folder.metrics}: the metrics of {listed_steps(missing)} are missing"] if missing else []
    return lines + [line for watcher in run.watchers for line in watcher.rewind(progress.step, progress.records)]
