"""`outdo plan`: what a recipe costs on hardware that is not there, without loading a model."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.arguments import AsJson, Settings, recipe_and_overrides
from outdo.cli.recipe import prompt_renderer
from outdo.config.attention import divided_heads
from outdo.config.file import RecipeError, load
from outdo.config.options import needs_reference
from outdo.config.recipe import Recipe
from outdo.data.splits import load_questions
from outdo.extras.plan import report
from outdo.extras.plan.hardware import cluster_named
from outdo.extras.plan.layout import StepTime
from outdo.extras.plan.problem import Problem
from outdo.extras.plan.reward_models import planned_rewards, reward_work
from outdo.extras.plan.search import Plan, at_staleness, plan
from outdo.extras.plan.shapes import shape_of
from outdo.extras.plan.validation import errors, validate
from outdo.extras.plan.workload import workload_of
from outdo.models.inspect_folder import inspect_folder
from outdo.run.check.estimate import Sample
from outdo.run.check.preflight import sample_of
from outdo.utils.errors import ModelError, UserError

NO_DATA = "no-data.jsonl"
"""The path of the data of a recipe that names none."""

GPUS, UPDATES_BEHIND = "1xH100", 1
"""The devices, and the updates by which an answer may be behind, that are planned if nothing else is asked for."""

STALENESS = (0, 1, 2, 4)
"""Values that are compared for the best split of trainers and engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArguments:
    """What is planned besides the recipe."""

    gpus: str
    card: list[str]
    model: str | None
    answer_tokens: float | None
    prompt_tokens: float | None
    spread: float | None
    staleness: int


def command(
    settings: Settings = None,
    *,
    gpus: Annotated[str, typer.Option(help="number and name of the devices: 8xH100")] = GPUS,
    card: Annotated[
        list[str] | None, typer.Option(help="a number of the card: memory=141, price=2; may be given several times")
    ] = None,
    model: Annotated[str | None, typer.Option(help="7B, qwen2.5-7b or a folder; unset: the recipe's")] = None,
    answer_tokens: Annotated[float | None, typer.Option(min=1, help="mean length of an answer")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=0, help="mean length of a prompt")] = None,
    spread: Annotated[
        float | None, typer.Option(min=0.01, max=4, help="standard deviation of the logarithm of the lengths")
    ] = None,
    staleness: Annotated[
        int, typer.Option(min=0, max=64, help="updates by which an answer may be behind")
    ] = UPDATES_BEHIND,
    validation: Annotated[
        bool, typer.Option("--validate", help="compare predictions with published measurements instead")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the plan of a recipe, or what `outdo.extras.plan` predicts for published runs."""
    arguments = PlanArguments(
        gpus=gpus,
        card=card or [],
        model=model,
        answer_tokens=answer_tokens,
        prompt_tokens=prompt_tokens,
        spread=spread,
        staleness=staleness,
    )
    run = run_validation if validation else run_plan
    run(settings, arguments, Console(), as_json=as_json)


def run_plan(settings: list[str] | None, arguments: PlanArguments, console: Console, *, as_json: bool = False) -> None:
    """Print the plan of a recipe."""
    problem, assumed = _problem(settings, arguments)
    best = plan(problem, staleness=arguments.staleness)
    stale = _staleness(problem, best)
    if as_json:
        print(json.dumps(report.as_dict(best, problem, assumed, stale)))
    else:
        report.show(best, problem, assumed, stale, console)


def run_validation(
    settings: list[str] | None, arguments: PlanArguments, console: Console, *, as_json: bool = False
) -> None:
    """Print every published number beside its prediction. Raises `UserError` for what has no effect on them."""
    options = {
        "a recipe": settings,
        "--model": arguments.model,
        "--card": arguments.card,
        "--answer-tokens": arguments.answer_tokens,
        "--prompt-tokens": arguments.prompt_tokens,
        "--spread": arguments.spread,
        "--gpus": arguments.gpus != GPUS,
        "--staleness": arguments.staleness != UPDATES_BEHIND,
    }
    if useless := [name for name, value in options.items() if value]:
        raise UserError([f"--validate: {name} has no effect on published runs; leave it out" for name in useless])
    results = validate()
    if not as_json:
        report.show_validation(results, console)
        return
    median, worst = errors(results)
    rows = [
        {
            "software": result.software,
            "card": result.card,
            "setting": result.row,
            "quantity": result.quantity,
            "published": result.published,
            "predicted": result.predicted,
            "error": result.error,
            "fitted": result.fitted,
            "not_covered": result.outside or None,
            "source": result.source,
        }
        for result in results
    ]
    print(json.dumps({"rows": rows, "median": median, "worst": worst}))


def _problem(settings: list[str] | None, arguments: PlanArguments) -> tuple[Problem, list[str]]:
    """Return what is planned, and what was assumed. Raises `UserError` with the mistakes of all arguments."""
    mistakes: list[str] = []
    recipe = shape = cluster = None
    assumed: list[str] = []
    try:
        recipe = _recipe(settings, arguments.model)
        shape, assumed = shape_of(arguments.model or recipe.model)
    except UserError as error:
        mistakes += error.problems
    try:
        cluster = cluster_named(arguments.gpus, arguments.card)
    except UserError as error:
        mistakes += error.problems
    if recipe is not None:
        mistakes += _impossible_lengths(recipe, arguments)
    if recipe is not None and shape is not None:
        mistakes += divided_heads(recipe, shape.facts)
    if mistakes or recipe is None or shape is None or cluster is None:
        raise UserError(mistakes)
    sample, unread = _sample(recipe, arguments)
    work, lengths = workload_of(
        recipe,
        shape.facts,
        mean=arguments.answer_tokens,
        prompt=arguments.prompt_tokens,
        spread=arguments.spread,
        sample=sample,
    )
    rewards, of_rewards = planned_rewards(recipe, shape)
    problem = Problem(
        shape=shape,
        cluster=cluster,
        work=replace(work, rewards=reward_work(rewards, recipe)),
        recipe=recipe,
        reference=needs_reference(recipe),
        rewards=rewards,
    )
    return problem, [*assumed, *lengths, *unread, *of_rewards]


def _impossible_lengths(recipe: Recipe, arguments: PlanArguments) -> Iterator[str]:
    """Yield a sentence for each mean length that no run by the recipe has."""
    longest, prompt = recipe.sampling.max_tokens, recipe.data.max_prompt_tokens
    if arguments.answer_tokens is not None and arguments.answer_tokens > longest:
        yield (
            f"--answer-tokens {arguments.answer_tokens:g}: every answer ends at sampling.max_tokens = {longest}; "
            "raise it, as in sampling.max_tokens=4096"
        )
    if arguments.prompt_tokens is not None and arguments.prompt_tokens > prompt:
        yield (
            f"--prompt-tokens {arguments.prompt_tokens:g}: prompts of more than data.max_prompt_tokens = {prompt} are "
            "left out; raise it, as in data.max_prompt_tokens=4096"
        )


def _sample(recipe: Recipe, arguments: PlanArguments) -> tuple[Sample | None, list[str]]:
    """Return a sample of the prompts, if model and data are on this machine; and why they could not be read."""
    if arguments.prompt_tokens is not None or arguments.model is not None or recipe.data.path[0].path == NO_DATA:
        return None, []
    try:
        facts = inspect_folder(recipe.model)
        if facts.folder is None:
            return None, []
        sample, _, refused = sample_of(recipe, facts, load_questions(recipe).train, prompt_renderer(recipe))
    except (UserError, ModelError) as error:
        refused, sample = str(error).splitlines(), None
    return sample, [f"prompts: the data cannot be read ({mistake})" for mistake in refused[:1]]


def _recipe(settings: list[str] | None, model: str | None) -> Recipe:
    """Return the recipe. A plan needs no data, and the model may be an argument: both may be missing in the recipe."""
    file, overrides = recipe_and_overrides(settings)
    try:
        return load(file, overrides)
    except RecipeError as error:
        missing = {"model": model, "data.path": NO_DATA}
        more = [f"{key}={value}" for key, value in missing.items() if key in error.broken and value]
        if not more:
            raise UserError(error.problems) from None
    try:
        return load(file, [*overrides, *more])
    except RecipeError as error:
        raise UserError(error.problems) from None


def _staleness(problem: Problem, planned: Plan) -> dict[float, StepTime]:
    """Return the step of the best split of trainers and engines with each staleness."""
    split = next((option.prediction for option in planned.options if option.prediction.layout.kind == "apart"), None)
    if split is None:
        return {}
    known = {split.layout.staleness: split}
    return {n: known.get(n) or at_staleness(problem, split.layout, n) for n in sorted({*STALENESS, *known})}
