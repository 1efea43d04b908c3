"""The evaluations of a run: greedy and sampled accuracy on its held-out questions."""

from outdo.trainer.build import Run, sampling_params
from outdo.trainer.display import Display
from outdo.trainer.evaluation import evaluate
from outdo.trainer.state import Progress
from outdo.utils.timing import Clock, span


def evaluate_run(run: Run, step: int, display: Display) -> dict[str, float]:
    """Return the accuracy, greedy and sampled at temperature 1, with its confidence intervals.

    Without held-out questions the result is empty.
    """
    if not run.held_out:
        return {}
    settings, numbers = run.recipe.eval, {}
    kinds: dict[str, tuple[float, int]] = {}  # temperature and answers per question
    if settings.greedy:
        kinds["greedy"] = (0.0, 1)
    if settings.samples:
        kinds["sampled"] = (1.0, settings.samples)
    for name, (temperature, k) in kinds.items():
        sampling = sampling_params(run.recipe, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
        with span("evaluate"), Clock():  # an own clock: sampling and scoring here belong to no step
            evaluation = evaluate(run.engine, run.eval_environment, run.held_out, sampling, k=k, step=step)
        low, high = evaluation.ci95
        numbers |= {name: evaluation.accuracy, f"{name}_low": low, f"{name}_high": high}
    display.evaluated(step, numbers)
    return numbers


def evaluate_if_due(run: Run, progress: Progress, step: int, display: Display) -> dict[str, float]:
    """Return the metrics of the evaluation after `step`, kept in `progress`; nothing if none is due."""
    recipe = run.recipe
    if step != recipe.steps and not is_due(step, recipe.eval.every):
        return {}
    progress.evaluated(evaluate_run(run, step, display), step, best_by=recipe.eval.best)
    return {f"eval/{name}": value for name, value in progress.after.items()}


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every so many steps happens after `step`; 0 is never."""
    return every > 0 and step % every == 0
