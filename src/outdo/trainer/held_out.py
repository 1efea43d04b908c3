"""The evaluations of a run: greedy and sampled answers to its held-out questions."""

from functools import partial
from pathlib import Path
from typing import Any

from outdo.rollouts.engines.base import PolicyView
from outdo.storage import held_out_answers
from outdo.trainer.build import Run, sampling_params
from outdo.trainer.display import Display
from outdo.trainer.evaluation import evaluate
from outdo.trainer.state import Progress
from outdo.utils.timing import Clock, span


def evaluate_run(run: Run, folder: Path, step: int, display: Display) -> dict[str, float]:
    """Evaluate the policy after `step`, greedy and sampled at temperature 1; return the numbers (`Evaluation.metrics`).

    The answers are written to the run's folder (`outdo.storage.held_out_answers`). Without held-out questions the
    result is empty.
    """
    if not run.held_out:
        return {}
    with span("evaluate"):
        numbers, answers = run.ahead.with_engine(partial(_evaluate, run, step))
    held_out_answers.write(held_out_answers.path_of(folder, step), answers)
    display.evaluated(step, numbers)
    return numbers


def _evaluate(run: Run, step: int, policy: PolicyView) -> tuple[dict[str, float], list[dict[str, Any]]]:
    run.engine.update_weights(policy)
    settings, numbers, answers = run.recipe.eval, {"questions": float(len(run.held_out))}, []
    kinds: dict[str, tuple[float, int]] = {}  # temperature and answers per question
    if settings.greedy:
        kinds["greedy"] = (0.0, 1)
    if settings.samples:
        kinds["sampled"] = (1.0, settings.samples)
    for name, (temperature, k) in kinds.items():
        sampling = sampling_params(run.recipe, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
        with Clock():  # an own clock: sampling and scoring here belong to no step
            evaluation = evaluate(run.engine, run.eval_environment, run.held_out, sampling, k=k, step=step)
        numbers |= evaluation.metrics(name)
        answers += evaluation.answers(name)
    return numbers, answers


def evaluate_after(run: Run, folder: Path, progress: Progress, step: int, display: Display) -> dict[str, float]:
    """Evaluate the policy after `step`, keep the result in `progress`, and return its metrics."""
    progress.evaluated(evaluate_run(run, folder, step, display), step, best_by=run.recipe.eval.best)
    return {f"eval/{name}": value for name, value in progress.after.items()}


def evaluation_is_due(run: Run, step: int) -> bool:
    """Return whether the policy is evaluated after `step`: in its turn, and after the last step."""
    return bool(run.held_out) and (step == run.recipe.steps or is_due(step, run.recipe.eval.every))


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every so many steps happens after `step`; 0 is never."""
    return every > 0 and step % every == 0
