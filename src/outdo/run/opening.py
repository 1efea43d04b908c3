"""What a run says before its first step: what is trained on what, and warnings. All the rest is in its `start.txt`."""

import os
from pathlib import Path

from outdo.run.assemble.assemble import Run
from outdo.run.display import Display
from outdo.run.folder.run_folder import RunFolder
from outdo.utils.hub_names import is_local
from outdo.utils.text import counted


def announce(folder: RunFolder, run: Run, step: int, display: Display) -> None:
    """Say what is trained by the steps after `step`; write it to the run folder, with all notes and warnings so far."""
    line = opening(run, folder.path)
    display.say_wrapped(line)
    for note in run.notes:
        display.note(note)
    for warning in run.warnings:
        display.warn(warning)
    folder.append_start(step, [line, *display.take_notes()])


def opening(run: Run, folder: Path) -> str:
    """Return what is trained, by which objective, on how many questions, for how long, and where the run is kept."""
    recipe, policy = run.recipe, run.models.policy
    weights = counted(sum(weight.numel() for weight in policy.optimiser.weights.values()), "weight")
    if policy.base is None:
        trained = f"all {weights} of {_shown(recipe.model)}"
    else:
        adapter = (
            f"a {recipe.train.adapter.name} adapter" if recipe.train.adapter else f"the adapter {_shown(recipe.model)}"
        )
        trained = f"{adapter} ({weights}) of {_shown(policy.base.name)}"
    questions = counted(len(run.data.prompts.prompts), "question")
    step = f"{counted(recipe.train.prompts, 'question')} with {counted(recipe.train.group_size, 'answer')} each"
    processes = f", in {len(run.world)} processes" if len(run.world) > 1 else ""
    return (
        f"training {trained} by {recipe.train.objective.name} on {questions}: {counted(recipe.steps, 'step')} of {step}"
        f"{processes}; run folder: {folder} (notes on its settings: start.txt)"
    )


def _shown(model: str) -> str:
    """Return the name of a model, or its path as one would write it here."""
    path = os.path.relpath(model)
    return path if is_local(model) and len(path) < len(model) else model
