"""`outdo resume`: continue a run from its latest complete checkpoint, as the run that it was."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.config.file import dump, load, overrides_between
from outdo.config.paths import code_of, with_absolute_paths
from outdo.config.recipe import Recipe
from outdo.config.resume import accepted_changes
from outdo.data.splits import load_questions
from outdo.observability.record import parquet
from outdo.observability.trackers.delivery import Trackers
from outdo.storage import checkpoint, held_out_answers, reads
from outdo.storage.provenance import saved_revisions
from outdo.storage.run_folder import RunFolder
from outdo.trainer.build import Run, build_run, identity_of
from outdo.trainer.display import Display
from outdo.trainer.run import make_tokens_folder, own_folder, run_to_end, write_page
from outdo.trainer.state import Progress, restore
from outdo.trainer.tracking import tracking
from outdo.utils.errors import CheckpointError, UserError
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
    if not (folder / "recipe.toml").is_file():
        raise UserError([f"{folder}: no run is there (it has no recipe.toml)"])
    recipe = load(folder / "recipe.toml", overrides)
    with tracking(recipe.track, folder, display.say, world) as trackers:
        status = _resume(folder, recipe, display, trackers, changed=changed, profile=profile, world=world)
        return write_page(folder, status, display, world)


def holds_run(folder: Path, world: World) -> bool:
    """Return whether a run was begun in `folder`. Replicas go by what the first one finds."""
    return world.from_first((folder / "recipe.toml").is_file)


def resume_by(recipe: Recipe, folder: Path, display: Display, *, profile: bool, world: World) -> int:
    """Continue the run in `folder` with the settings of `recipe`, as `resume` does; return the exit status.

    What the recipe leaves to outdo stays as it was chosen when the run was begun.
    """
    saved = load(folder / "recipe.toml")
    return resume(folder, overrides_between(saved, with_absolute_paths(recipe)), display, profile=profile, world=world)


def _resume(
    folder: Path,
    recipe: Recipe,
    display: Display,
    trackers: Trackers,
    *,
    changed: bool,
    profile: bool,
    world: World,
) -> int:
    with own_folder(folder, world) as own, RunFolder(own) as run_folder:
        newest = checkpoint.latest(folder / "checkpoints")
        state = checkpoint.load_state(newest.path) if newest else {}
        questions = load_questions(recipe, saved_revisions(folder))
        saved = state.get("identity") or {"recipe": dump(load(folder / "recipe.toml", []))}
        now = identity_of(recipe, questions)
        changes = accepted_changes(_comparable(saved), _comparable(now), folder, changed=changed)
        notices = [run_folder.notice] if run_folder.notice else []
        if code := code_of(recipe):
            notices.append(f"runs code that the recipe names: {', '.join(code)}")
        for line in [*notices, *changes]:
            display.say(line)
        for fault in newest.broken if newest else ():
            display.say(f"not used: {fault}")
        make_tokens_folder(run_folder, recipe)
        path = newest.path if newest else None
        run = build_run(recipe, model=path, questions=questions, folder=own, display=display, world=world)
        progress = _restored(run, state, newest.path) if newest else Progress()
        display.say(f"resumed after step {progress.step} of {recipe.steps}")
        for line in _rewind(run_folder, progress, recipe.record.every):
            display.say(line)
        return run_to_end(run_folder, run, progress, display, trackers=trackers, changes=changes, profile=profile)


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity with its recipe, which is TOML, as `settings`."""
    return {**identity, "settings": tomllib.loads(identity["recipe"])}


def _restored(run: Run, state: Mapping[str, Any], path: Path) -> Progress:
    try:
        return restore(run, state)
    except (KeyError, ValueError, RuntimeError) as error:
        run.close()
        raise CheckpointError(f"{path}: its state does not fit the recipe: {error}") from error


def _rewind(folder: RunFolder, progress: Progress, every: int) -> list[str]:
    """Remove what was written after the step of the checkpoint; return a line for what is missing before it.

    `every` is the number of steps between records.
    """
    missing = folder.rewind(progress.step)
    parquet.drop_after(folder.path, progress.step)
    held_out_answers.drop_after(folder.path, progress.step)
    reads.drop_after(folder.path, progress.step)
    parquet.remove_leftovers(folder.path)
    lines = [f"{folder.metrics}: the metrics of {_listed(missing)} are missing"] if missing else []
    recorded = parquet.recorded_steps(folder.path)
    lost = progress.records - len(recorded)
    if lost > 0:
        due = [step for step in range(1, progress.step + 1) if every and step % every == 0 and step not in recorded]
        named = f": {_listed(due)}" if len(due) == lost else ""  # unless records were made at other steps before
        lines.append(f"{folder.path / 'tokens'}: {lost} of the {progress.records} records are missing{named}")
    return lines


def _listed(steps: Sequence[int]) -> str:
    """Return `step 3`, or `the steps 3, 7-9`."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and ranges[-1][-1] == step - 1:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"the steps {', '.join('-'.join(map(str, each)) for each in ranges)}"
