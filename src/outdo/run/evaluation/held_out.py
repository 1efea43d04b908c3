"""The evaluations of a run: greedy and sampled answers to its held-out questions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from outdo.config.recipe import Recipe
from outdo.rollouts.engines.base import PolicyView
from outdo.run.assemble.assemble import Run
from outdo.run.assemble.engines import completions_of
from outdo.run.assemble.sampling import sampling_params
from outdo.run.checkpoints.state import Progress
from outdo.run.display import Display
from outdo.run.evaluation import held_out_completions
from outdo.run.evaluation.evaluation import Evaluation, evaluate
from outdo.types import Group
from outdo.utils.errors import UserError
from outdo.utils.outcome import EVALUATIONS, headline
from outdo.utils.timing import Clock, span

NO_RESULT = ("_low", "_high", "questions", "_answers", "_without_verdict", "_without_reward")
"""The ends of the names of numbers that are no result: they say how sure another number is."""


def evaluate_run(run: Run, folder: Path, step: int, display: Display) -> dict[str, float]:
    """Evaluate the policy after `step`, greedy and sampled at temperature 1; return the numbers (`Evaluation.metrics`).

    The answers are written to the run's folder (`outdo.run.evaluation.held_out_completions`). Without held-out
    questions the result is empty.

    Raises `UserError` before the first step if `eval.best` names a number that it does not have.
    """
    if not run.data.held_out:
        return {}
    with span("evaluate"):
        numbers, completions, groups = run.sampling.rollouts.with_engine(partial(_evaluate, run, step, display))
        for watcher in run.watchers:
            numbers |= watcher.evaluated(step, groups)
    best = run.recipe.eval.best.name
    if step == 0 and best not in EVALUATIONS and headline(best, numbers) not in numbers:
        known = ", ".join(name for name in numbers if not name.endswith(NO_RESULT))
        raise UserError([f'eval.best = "{best}": the evaluation has no such number; it has {known}'])
    held_out_completions.write(held_out_completions.path_of(folder, step), completions)
    display.evaluated(step, numbers)
    return numbers


def _evaluate(
    run: Run, step: int, display: Display, policy: PolicyView
) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, Sequence[Group]]]:
    """Return the numbers of an evaluation, its answers as they are written, and the groups of each kind."""
    engine, environment = run.sampling.engine, run.sampling.eval_environment
    engine.update_weights(policy)
    settings, sets = run.recipe.eval, run.data.held_out_sets
    numbers, completions = {"questions": float(len(run.data.held_out))}, list[dict[str, Any]]()
    groups: dict[str, Sequence[Group]] = {}
    kinds: dict[str, tuple[float, int]] = {}  # temperature and answers per question
    if settings.greedy:
        kinds["greedy"] = (0.0, 1)
    if settings.samples:
        kinds["sampled"] = (1.0, settings.samples)
    for name, (temperature, k) in kinds.items():
        params = sampling_params(run.recipe, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0)
        watched = display.working(f"evaluating, {name}", completions_of(engine))
        with watched, Clock():  # an own clock: sampling and scoring here belong to no step
            evaluation = evaluate(engine, environment, run.data.held_out, params, k=k, step=step)
        numbers |= evaluation.metrics(name, defined=run.reward.gives_verdicts)
        groups[name] = evaluation.groups
        for set_name, part in _by_set(evaluation, sets).items():
            of_set = {"questions": float(len(part.groups))} | part.metrics(name, defined=run.reward.gives_verdicts)
            numbers |= {f"{set_name}/{metric}": value for metric, value in of_set.items()}
        completions += [
            ({"set": sets[completion["id"]]} if sets else {}) | dict(completion)
            for completion in evaluation.completions(name)
        ]
    return numbers, completions, groups


def _by_set(evaluation: Evaluation, sets: Mapping[str, str]) -> dict[str, Evaluation]:
    """Return the evaluation of each held-out set that has a name."""
    names = list(dict.fromkeys(sets[group.prompt.id] for group in evaluation.groups)) if sets else []
    return {
        name: replace(evaluation, groups=[group for group in evaluation.groups if sets[group.prompt.id] == name])
        for name in names
    }


def evaluate_after(run: Run, folder: Path, progress: Progress, step: int, display: Display) -> dict[str, float]:
    """Evaluate the policy after `step`, keep the result in `progress`, and return its metrics."""
    progress.evaluated(evaluate_run(run, folder, step, display), step, best_by=run.recipe.eval.best.name)
    return {f"eval/{name}": value for name, value in progress.after.items()}


def evaluation_is_due(run: Run, step: int) -> bool:
    """Return whether the policy is evaluated after `step`: in its turn, and after the last step."""
    return bool(run.data.held_out) and (step == run.recipe.steps or is_due(step, run.recipe.eval.every))


def early_end(recipe: Recipe, progress: Progress) -> str:
    """Return why a run ends before its last step, by `eval.best.patience`; an empty text if it does not."""
    best, patience = recipe.eval.best, recipe.eval.best.patience
    if patience is None or progress.since_best < patience or progress.step >= recipe.steps or progress.unevaluated:
        return ""
    return (
        f"ended early: {best.name} has not risen in the last {progress.since_best} evaluations; "
        f"the best one is that after step {progress.best['step']:.0f}"
    )


def completion(recipe: Recipe, progress: Progress, folder: Path) -> str:
    """Return why no step of a run is left, and how to go on all the same; an empty text if a step is left."""
    if why := early_end(recipe, progress):
        return f"{why}; more with `outdo resume {folder} eval.best=...`"
    if progress.step >= recipe.steps and not progress.unevaluated:
        return f"step {recipe.steps} was the last; more with `outdo resume {folder} steps=...`"
    return ""


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every so many steps happens after `step`; 0 is never."""
    return every > 0 and step % every == 0
