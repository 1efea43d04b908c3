"""`outdo eval`: evaluate one model, or compare two, on the questions of a file or of a run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from outdo.cli.answering import Answering, answering
from outdo.cli.arguments import (
    AsJson,
    Device,
    Engine,
    Limit,
    MaxTokens,
    RunOrModel,
    Temperature,
    Template,
    Threads,
    not_writable,
)
from outdo.cli.evaluation_output import Results, as_json_object, print_results
from outdo.cli.output import print_line
from outdo.cli.recipe import without_overlong
from outdo.cli.template_option import say_template_notes
from outdo.config.environments import row_environments
from outdo.config.file import fault_of_toml, read_value
from outdo.config.paths import named_code
from outdo.config.recipe import Piece, Recipe
from outdo.data import pass_rates
from outdo.data.pass_rates import PassRate
from outdo.data.questions import Matchers, Question, questions_from
from outdo.models.device import make_deterministic, set_threads
from outdo.models.policy import Policy
from outdo.rewards import WeightedSum, load_reward, reward_input
from outdo.rewards.matchers import majorities, reference_checks
from outdo.run.assemble.data import held_out_questions
from outdo.run.assemble.engines import completions_of, named_engine, open_engine
from outdo.run.assemble.environment import open_environment
from outdo.run.check.reward_trials import tried_first
from outdo.run.evaluation import held_out_completions
from outdo.run.evaluation.evaluation import Evaluation, evaluate
from outdo.run.export.find_model import ModelRef, find_model
from outdo.run.progress_bar import progress
from outdo.utils.errors import UserError
from outdo.utils.text import counted

REWARDS = ("last_number",)
"""The rewards where neither an argument nor a run sets them."""

SEVERAL = "--rates and --answers write those to one data set; name it with --data"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """The arguments of `outdo eval`; None is the run's own setting, or the default where there is no run."""

    data: Sequence[str]  # empty: the held-out questions of the run
    rewards: Sequence[str]  # empty: the run's own
    right: str | None
    k: int
    temperature: float | None
    max_tokens: int | None
    limit: int | None
    template: str | None
    seed: int
    device: str
    threads: int | None = None
    rates: Path | None = None  # file for the pass rate of each question
    answers: Path | None = None  # file for every answer
    engine: str | None = None  # a name, or a table in TOML


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """The questions, and how their answers are sampled and scored: the same for every model."""

    questions: Sequence[Question]
    rewards: Sequence[Any]  # the argument of `rewards.load_reward`
    right: str | None  # the name of the reward that decides which answers are right
    limits: Mapping[str, Any]  # further arguments of `load_reward`
    answering: Answering


def command(
    *,
    model: RunOrModel,
    data: Annotated[
        list[str] | None, typer.Option(help="questions; may be given several times; unset: those held out by the run")
    ] = None,
    against: Annotated[str | None, typer.Option(help="a second model to compare with")] = None,
    rewards: Annotated[
        list[str] | None, typer.Option(help="a reward, as in a recipe; may be given several times; unset: the run's")
    ] = None,
    right: Annotated[
        str | None, typer.Option(help="the reward that decides which answers are right; unset: see eval.right")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="answers per question")] = 1,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    limit: Limit = None,
    template: Template = None,
    seed: Annotated[int, typer.Option(help="random seed of the sampling")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    rates: Annotated[Path | None, typer.Option(help="write the pass rate of each question, for data.select")] = None,
    answers: Annotated[Path | None, typer.Option(help="write every answer with its rewards: a .jsonl file")] = None,
    engine: Engine = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate one model, or two."""
    arguments = EvalArguments(
        data=data or (),
        rewards=rewards or (),
        right=right,
        k=k,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        template=template,
        seed=seed,
        device=device,
        threads=threads,
        rates=rates,
        answers=answers,
        engine=engine,
    )
    models = [model] if against is None else [model, against]
    run_eval(models, arguments, Console(), as_json=as_json)


def run_eval(models: Sequence[str], arguments: EvalArguments, console: Console, *, as_json: bool) -> None:
    """Evaluate the models and print a table, or one JSON object."""
    _check_output(models, arguments)
    sources = [find_model(model) for model in models]
    run = next((source for source in sources if source.recipe is not None), sources[0])
    engines = _engines(sources, arguments)
    _announce_code(run.recipe, arguments)
    tasks = _tasks(arguments, run)
    if len(tasks) > 1 and (arguments.rates or arguments.answers):
        raise UserError([f"eval: {SEVERAL}"])
    (first, *_) = tasks.values()
    reward = _load(first)  # the rewards are the same for every model and data set
    try:
        if arguments.rates is not None:
            _check_verdicts(reward, first.questions[0])
        say_template_notes(arguments.template, sources, dated=first.answering.dated)
        results = _results(sources, tasks, arguments, engines, reward)
    finally:
        reward.close()
    written = list(_write_files(results, tasks, arguments))
    if as_json:
        console.file.write(json.dumps(as_json_object(results, reward)) + "\n")
        return
    print_results(results, reward, console)
    for line in written:
        print_line(console, line)


def _results(
    sources: Sequence[ModelRef],
    tasks: Mapping[str, EvaluationTask],
    arguments: EvalArguments,
    engines: Mapping[str, Piece],
    reward: WeightedSum,
) -> Results:
    """Evaluate each model on each data set."""
    by_model = {source.name: _evaluations(source, tasks, arguments, engines[source.name], reward) for source in sources}
    return {data: {name: evaluations[data] for name, evaluations in by_model.items()} for data in tasks}


def _engines(sources: Sequence[ModelRef], arguments: EvalArguments) -> dict[str, Piece]:
    """Return the engine of each model, by its name. Raises `UserError` with what is wrong with one."""
    return {source.name: named_engine(arguments.engine, source.recipe) for source in sources}


def _check_output(models: Sequence[str], arguments: EvalArguments) -> None:
    """Check, before anything is evaluated, that there are two models at most once each, and files for one of them."""
    if len(set(models)) < len(models):
        raise UserError([f"eval: {models[0]} is given twice; --against needs another model"])
    files = {"--rates writes the pass rates": arguments.rates, "--answers writes the answers": arguments.answers}
    for what, path in files.items():
        if path is not None and len(models) > 1:
            raise UserError([f"eval: {what} of one model; leave out --against"])
        if path is not None and len(arguments.data) > 1:
            raise UserError([f"eval: {what} to one data set; give --data once"])
    if arguments.rates is not None:
        pass_rates.check_output_path(arguments.rates)
    if arguments.answers is not None and (mistake := not_writable(arguments.answers)):
        raise UserError([mistake])


def _write_files(results: Results, tasks: Mapping[str, EvaluationTask], arguments: EvalArguments) -> Iterator[str]:
    """Write the pass rates and the answers where they are wanted, and yield a line for each file.

    `_check_output` has refused both for several models or data sets.
    """
    evaluation = next(iter(next(iter(results.values())).values()))
    task = next(iter(tasks.values()))
    if arguments.rates is not None:
        rates = _rates(evaluation)
        if not rates:
            raise UserError([f"eval: {arguments.rates} is not written: no answer has a verdict"])
        pass_rates.write(arguments.rates, rates)
        left_out = len(task.questions) - len(rates)
        missing = f"; {counted(left_out, 'question')} without a verdict have none" if left_out else ""
        yield f"pass rates of {counted(len(rates), 'question')}: {arguments.rates}{missing}"
    if arguments.answers is not None:
        kind = "greedy" if task.answering.sampling.temperature == 0 else "sampled"
        held_out_completions.write(arguments.answers, evaluation.completions(kind))
        yield f"the answers: {arguments.answers}"


def _load(task: EvaluationTask) -> WeightedSum:
    try:
        reward = load_reward(list(task.rewards), right=task.right, **task.limits)
    except UserError as error:
        raise UserError([f"eval: {mistake}" for mistake in error.problems]) from None
    assert isinstance(reward, WeightedSum)
    reward.tried_first = tried_first(task.questions)
    return reward


def _check_verdicts(reward: WeightedSum, question: Question) -> None:
    """Raise `UserError` if the rewards do not tell which answers are right, before any model is loaded."""
    needed = "--rates counts right answers; --right NAME names the reward that decides"
    rule = reward.right_rule.reward
    if rule is None:
        raise UserError([f"eval: {needed}: {' or '.join(reward.names)}"])
    reward([reward_input(question, "")])
    if reward.verdicts.given is False:
        raise UserError([f"eval: {rule} returns numbers, and {needed}, from 1 on"])


def _announce_code(recipe: Recipe | None, arguments: EvalArguments) -> None:
    """Name the user's code that will run because the recipe of a run, possibly a stranger's, names it."""
    if recipe is None:
        return
    pieces = [*([] if arguments.rewards else recipe.rewards), recipe.environment, recipe.data.inputs]
    if code := named_code([piece for piece in pieces if piece is not None]):
        print_line(Console(stderr=True), f"runs code that the recipe names: {', '.join(code)}")


def _tasks(arguments: EvalArguments, source: ModelRef) -> dict[str, EvaluationTask]:
    """Return a task for each data set, by its name.

    Those of the held-out questions of the run have the names of its sets, or `held out` if these have none.
    """
    if len(set(arguments.data)) < len(arguments.data):
        raise UserError(["eval: a --data is given twice"])
    recipe = source.recipe
    matchers = reference_checks(_rewards(arguments, recipe)[0])
    questions = _questions(arguments, source, matchers)
    return {data: _task(arguments, recipe, asked) for data, asked in questions.items()}


def _task(arguments: EvalArguments, recipe: Recipe | None, questions: Sequence[Question]) -> EvaluationTask:
    """Take each setting from the arguments, or else from the run's recipe, or else from the defaults."""
    rewards, right = _rewards(arguments, recipe)
    return EvaluationTask(
        questions=questions,
        rewards=rewards,
        right=right,
        limits={} if recipe is None else recipe.reward_limits.of_workers,
        answering=answering(
            "eval",
            recipe,
            k=arguments.k,
            temperature=arguments.temperature,
            max_tokens=arguments.max_tokens,
            template=arguments.template,
        ),
    )


def _questions(arguments: EvalArguments, source: ModelRef, matchers: Matchers) -> Mapping[str, Sequence[Question]]:
    """Return the questions of each file, or else of each held-out set of the run."""
    if arguments.data:
        options: dict[str, Any] = {"limit": arguments.limit, "matchers": matchers}
        if source.recipe and (environments := row_environments(source.recipe.environment)):
            options["environment_of"] = environments.name_in
        return {data: questions_from(data, **options) for data in arguments.data}
    if source.recipe is None or source.run is None:
        raise UserError(["eval: --data FILE is needed: a model folder has no held-out questions"])
    recipe = source.recipe.model_copy(update={"model": source.model})
    held_out = held_out_questions(source.recipe, source.run)
    short = {name or "held out": without_overlong(recipe, asked) for name, asked in held_out.items()}
    questions = {name: asked[: arguments.limit] for name, asked in short.items() if asked}
    if not questions:
        raise UserError(["eval: the run has no held-out questions; give some with --data FILE"])
    return questions


def _rewards(arguments: EvalArguments, recipe: Recipe | None) -> tuple[list[Any], str | None]:
    """Return the rewards, and the name of the one that decides what is right, if a setting names it."""
    if recipe is None or arguments.rewards:
        if faults := [f"--rewards: {fault}" for fault in map(fault_of_toml, arguments.rewards) if fault]:
            raise UserError(faults)
        return [read_value(written) for written in arguments.rewards] or list(REWARDS), arguments.right
    rewards = [{**spec, "weight": weight} for spec, weight in recipe.reward_functions]
    if not rewards:
        raise UserError(["eval: the run has reward models only; --rewards NAME scores the answers"])
    return rewards, arguments.right or recipe.eval.right


def _evaluations(
    source: ModelRef, tasks: Mapping[str, EvaluationTask], arguments: EvalArguments, named: Piece, reward: WeightedSum
) -> dict[str, Evaluation]:
    """Load a model once, and evaluate it on each data set."""
    (first, *_) = tasks.values()  # sampling and prompts are the same for every data set
    answering, sampling = first.answering, first.answering.sampling
    set_threads(arguments.threads)
    with progress(f"loading {source.name}"):
        policy = Policy.load(source.model, device=arguments.device, stop_token_ids=sampling.stop_token_ids)
        make_deterministic(policy.device)
    with progress("tokenising"):
        prompts = {data: task.answering.prompts(task.questions, policy) for data, task in tasks.items()}
    engine = open_engine(named, policy, seed=arguments.seed)
    vote = partial(majorities, reward)
    try:
        environment = open_environment(answering.environment, policy, reward, **answering.in_prompts)
        evaluations: dict[str, Evaluation] = {}
        for data, asked in prompts.items():
            with progress(f"answering {data}", completions_of(engine)):
                evaluations[data] = evaluate(engine, environment, asked, sampling, k=arguments.k, vote=vote)
        return evaluations
    finally:
        engine.close()


def _rates(evaluation: Evaluation) -> list[PassRate]:
    """Return the pass rate of each question whose answers have a verdict, by those answers."""
    return [
        PassRate(
            id=group.prompt.id,
            pass_rate=sum(verdicts) / len(verdicts),
            right=sum(verdicts),
            k=len(verdicts),
            fingerprint=pass_rates.fingerprint(group.prompt.text),
        )
        for group, verdicts in zip(evaluation.groups, evaluation.verdicts, strict=True)
        if verdicts
    ]
