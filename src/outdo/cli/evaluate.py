"""`outdo eval`: evaluate one model, or compare two, on the questions of a file or of a run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
from outdo.rewards import Reward, Status, WeightedSum, load_reward, reward_input
from outdo.rewards.matchers import majorities, reference_checks
from outdo.rewards.right import UNDEFINED, RightRule
from outdo.run.build.build import held_out_questions
from outdo.run.build.engines import completions_of, named_engine, open_engine
from outdo.run.build.environment import open_environment
from outdo.run.evaluation import held_out_completions
from outdo.run.evaluation.evaluation import Evaluation, compare_paired, evaluate
from outdo.run.export.find_model import ModelRef, find_model
from outdo.run.progress_bar import progress
from outdo.utils.errors import UserError
from outdo.utils.text import between, counted, for_terminal

REWARDS = ("last_number",)
"""The rewards where neither an argument nor a run sets them."""

SHARES = ("pass@", "maj@", "truncated")

SEVERAL = "--rates and --answers write those to one data set; name it with --data"


Results = Mapping[str, Mapping[str, Evaluation]]
"""The evaluations by data set and model."""


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
    first = next(iter(tasks.values()))
    say_template_notes(arguments.template, sources, dated=first.answering.dated)
    rule = _rule(first, verdicts_needed=arguments.rates is not None)
    results = _results(sources, tasks, arguments, engines)
    written = list(_write_files(results, tasks, arguments))
    if as_json:
        numbers = {data: _as_json(evaluations) for data, evaluations in results.items()}
        console.file.write(json.dumps(next(iter(numbers.values())) if len(numbers) == 1 else numbers) + "\n")
        return
    _print(results, console)
    for line in (rule.reason if rule.reward is None or _has_verdicts(results) else UNDEFINED, *written):
        print_line(console, line)


def _results(
    sources: Sequence[ModelRef],
    tasks: Mapping[str, EvaluationTask],
    arguments: EvalArguments,
    engines: Mapping[str, Piece],
) -> Results:
    """Evaluate each model on each data set."""
    found = {source.name: _evaluations(source, tasks, arguments, engines[source.name]) for source in sources}
    return {data: {name: each[data] for name, each in found.items()} for data in tasks}


def _has_verdicts(results: Results) -> bool:
    return any(each.has_verdicts for evaluations in results.values() for each in evaluations.values())


def _print(results: Results, console: Console) -> None:
    """Print a table with a column for each model and data set, and how two models compare on each data set."""
    several = len(results) > 1
    columns = {
        f"{name}: {data}" if several else name: evaluation.summary()
        for data, evaluations in results.items()
        for name, evaluation in evaluations.items()
    }
    console.print(_table(columns))
    for data, evaluations in results.items():
        if len(evaluations) > 1:
            compared = compare_paired(*evaluations.values()) or "no question has a reward from both models"
            print_line(console, (f"{data}: " if several else "") + str(compared))


def _as_json(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return the numbers of a model, or those of two models by name, and how they compare."""
    numbers: dict[str, Any] = {name: evaluation.summary() for name, evaluation in evaluations.items()}
    if len(evaluations) == 1:
        return next(iter(numbers.values()))
    compared = compare_paired(*evaluations.values())
    return numbers | {"comparison": None if compared is None else asdict(compared)}


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
        pass_rates.write(arguments.rates, _rates(evaluation))
        yield f"pass rates of {counted(len(task.questions), 'question')}: {arguments.rates}"
    if arguments.answers is not None:
        kind = "greedy" if task.answering.sampling.temperature == 0 else "sampled"
        held_out_completions.write(arguments.answers, evaluation.completions(kind))
        yield f"the answers: {arguments.answers}"


def _rule(task: EvaluationTask, *, verdicts_needed: bool) -> RightRule:
    """Return the rule that decides which answers are right, before any model is loaded.

    With `verdicts_needed`, raises `UserError` if the rewards do not tell which answers are right.
    """
    reward = _load(task)
    assert isinstance(reward, WeightedSum)
    try:
        rule = reward.right_rule
        needed = "--rates counts right answers; --right NAME names the reward that decides"
        if verdicts_needed and rule.reward is None:
            raise UserError([f"eval: {needed}: {' or '.join(reward.names)}"])
        if verdicts_needed:
            (tried,) = reward([reward_input(task.questions[0], "")])
            if tried.status is Status.ok and tried.right is None:
                raise UserError([f"eval: {rule.reward} returns numbers, and {needed}, from 1 on"])
        return rule
    finally:
        reward.close()


def _load(task: EvaluationTask) -> Reward:
    try:
        return load_reward(list(task.rewards), right=task.right, **task.limits)
    except UserError as error:
        raise UserError([f"eval: {mistake}" for mistake in error.problems]) from None


def _announce_code(recipe: Recipe | None, arguments: EvalArguments) -> None:
    """Name the user's code that will run because the recipe of a run, possibly a stranger's, names it."""
    if recipe is None:
        return
    pieces = [*([] if arguments.rewards else recipe.rewards), *([recipe.environment] if recipe.environment else [])]
    if code := named_code(pieces):
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
        return [read_value(each) for each in arguments.rewards] or list(REWARDS), arguments.right
    rewards = [{**spec, "weight": weight} for spec, weight in recipe.reward_functions]
    if not rewards:
        raise UserError(["eval: the run has reward models only; --rewards NAME scores the answers"])
    return rewards, arguments.right or recipe.eval.right


def _evaluations(
    source: ModelRef, tasks: Mapping[str, EvaluationTask], arguments: EvalArguments, named: Piece
) -> dict[str, Evaluation]:
    """Load a model once, and evaluate it on each data set."""
    (first, *_) = tasks.values()
    reward = _load(first)  # rewards, sampling and prompts are the same for every data set
    try:
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
            found: dict[str, Evaluation] = {}
            for data, asked in prompts.items():
                with progress(f"answering {data}", completions_of(engine)):
                    found[data] = evaluate(engine, environment, asked, sampling, k=arguments.k, vote=vote)
            return found
        finally:
            engine.close()
    finally:
        reward.close()


def _rates(evaluation: Evaluation) -> list[PassRate]:
    k = evaluation.k
    return [
        PassRate(
            id=group.prompt.id,
            pass_rate=right / k,
            right=right,
            k=k,
            fingerprint=pass_rates.fingerprint(group.prompt.text),
        )
        for group, right in zip(evaluation.groups, evaluation.right, strict=True)
    ]


def _table(numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("", *(escape(for_terminal(name)) for name in numbers))  # a name may look like rich's markup
    for row in dict.fromkeys(name for each in numbers.values() for name in each):
        cells = (_formatted(row, each[row]) if row in each else "" for each in numbers.values())
        table.add_row("95 % interval" if row.endswith("ci95") else row, *cells)
    return table


def _formatted(name: str, value: Any) -> str:
    if isinstance(value, list):
        low, high = value
        return between(low, high, "{:.1%}".format if name == "ci95" else "{:.3f}".format)
    if name == "reward" or name.startswith("rewards/"):
        return f"{value:.3f}"
    return f"{value:.1%}" if name.startswith(SHARES) else f"{value:g}"
