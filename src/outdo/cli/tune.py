"""`outdo tune lr`: try learning rates in short runs on the same questions, and suggest one."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from outdo.cli.arguments import recipe_and_overrides
from outdo.cli.grid import split_settings
from outdo.cli.output import print_warning
from outdo.cli.recipe import recipe_of
from outdo.cli.sweep import plan_runs, run_all
from outdo.config.recipe import Recipe, run_folder
from outdo.observability.learning_rate import Suggestion, Trial, draw, suggest, trial_of
from outdo.storage.atomic import write_json_atomically
from outdo.storage.run_folder import read_metrics
from outdo.trainer.display import Display
from outdo.utils.errors import UserError

FACTORS = (10**-1.0, 10**-0.5, 1.0, 10**0.5, 10**1.0, 10**1.5)
"""The rates that are tried, as multiples of the recipe's."""

STEPS = 12
"""Steps with each rate."""

SHORT = (
    *("optim.schedule=constant", "data.eval_path=", "data.eval_rows=0", "eval.every=0", "track=[]"),
    *("record.every=1", "checkpoint.keep=1"),
)
"""The settings of a run that only compares learning rates: each step has this rate, and nothing is held out."""


def run_tune_lr(settings: list[str] | None, display: Display) -> int:
    """Try the learning rates and print a table and a suggestion; return the exit status.

    Raises `UserError` with every fault of the recipe, before the first run starts.
    """
    file, overrides = recipe_and_overrides(settings)
    fixed, several = split_settings(overrides)
    if others := sorted(several.keys() - {"optim.lr"}):
        raise UserError([f"tune lr: {key} has several values; only optim.lr may" for key in others])
    before = [*([str(file)] if file else []), *fixed]
    recipe = recipe_of(before)
    short = [*SHORT, *([] if any(each.startswith("steps=") for each in fixed) else [f"steps={STEPS}"])]
    if recipe.record.after == 0:
        short.append("record.after=0.0625")  # without it no movement is measured
    rates = several.get("optim.lr") or [f"{recipe.optim.lr * factor:.3g}" for factor in FACTORS]
    with display.working("checking the recipes"):
        runs = plan_runs([*before, *short], {"optim.lr": rates}, folder_of=_folder)
    _, status = run_all(runs, display)
    trials = []
    for run in runs:
        if run.is_finished:
            shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # of no use, and as large as the model
        lines = read_metrics(run.folder / "metrics.jsonl", report=print_warning)
        trials.append(trial_of(run.recipe.optim.lr, lines, run.recipe.steps))
    suggestion = suggest(trials)
    _show(trials, suggestion, runs[0].folder.parent, display)
    return status


def _folder(recipe: Recipe) -> Path:
    return run_folder(f"{recipe.run or Path(recipe.model).name}-lr")


def _show(trials: Sequence[Trial], suggestion: Suggestion, folder: Path, display: Display) -> None:
    """Print the table and the suggestion, and write both and the picture into the folder."""
    table = Table("optim.lr", "gain", "reward", "step_kl", "clipped", "entropy", "")
    for trial in trials:
        numbers = ((trial.gain, "+.3f"), (trial.reward, ".3f"), (trial.step_kl, ".2g"), (trial.clipped, ".1%"))
        cells = ["" if value is None else f"{value:{style}}" for value, style in (*numbers, (trial.entropy, ".2g"))]
        table.add_row(f"{trial.rate:g}", *cells, "; ".join(trial.faults) or "within bounds")
    display.console.print(table)
    chosen = "no suggestion" if suggestion.rate is None else f"suggestion: optim.lr={suggestion.rate:g}"
    display.say(f"{chosen}: {suggestion.reason}")
    found = {"trials": [asdict(trial) for trial in trials], "suggestion": asdict(suggestion)}
    write_json_atomically(folder / "learning_rates.json", found)
    if not any(trial.steps for trial in trials):
        return
    picture = folder / "learning_rates.svg"
    try:
        draw(trials, suggestion, picture)
    except ImportError:
        display.say('no picture: it needs the package matplotlib: pip install "outdo[plot]"')
        return
    display.say(f"the picture: {picture}")
