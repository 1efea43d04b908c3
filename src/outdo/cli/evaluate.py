"""`outdo eval`: evaluate one model, or compare two, on the questions of a file or of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outdo.config.recipe import Recipe
from outdo.data import pass_rates
from outdo.data.pass_rates import PassRate
from outdo.data.prompts import tokenise
from outdo.data.questions import Question, questions_from
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.trainer.build import held_out_questions, open_engine
from outdo.trainer.evaluation import Evaluation, evaluate
from outdo.trainer.find_model import ModelRef, find_model
from outdo.utils.errors import UserError

DEFAULTS: Mapping[str, Any] = {
    "rewards": "last_number",
    "timeout": 10.0,  # seconds
    "max_tokens": 256,
    "stop": (),
    "stop_token_ids": (),
    "template": None,
    "system": None,
}
SHARES = ("pass@", "maj@", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalArguments:
    """The arguments of `outdo eval`; None is the run's own setting, or the default where there is no run."""

    data: str | None
    rewards: str | None
    k: int
    temperature: float | None
    max_tokens: int | None
    limit: int | None
    template: str | None
    seed: int
    device: str
    rates: Path | None = None  # file for the pass rate of each question


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The questions, and how their answers are sampled and scored: the same for every model."""

    questions: Sequence[Question]
    rewards: Any  # the argument of `rewards.load_reward`
    timeout: float
    sampling: SamplingParams
    template: str | None
    system: str | None


def run_eval(models: Sequence[str], arguments: EvalArguments, console: Console, *, as_json: bool) -> None:
    """Evaluate the models and print a table, or one JSON object."""
    if len(set(models)) < len(models):
        raise UserError([f"eval: {models[0]} is given twice; --against needs another model"])
    if arguments.rates is not None:
        if len(models) > 1:
            raise UserError(["eval: --rates writes the pass rates of one model; leave out --against"])
        pass_rates.check_output_path(arguments.rates)
    sources = [find_model(model) for model in models]
    recipe = next((source.recipe for source in sources if source.recipe is not None), None)
    task = _task(arguments, recipe)
    evaluations = {source.name: _evaluation(source, task, arguments) for source in sources}
    numbers = {name: evaluation.summary() for name, evaluation in evaluations.items()}
    if arguments.rates is not None:
        pass_rates.write(arguments.rates, _rates(*evaluations.values()))
    if as_json:
        console.file.write(json.dumps(next(iter(numbers.values())) if len(numbers) == 1 else numbers) + "\n")
    else:
        console.print(_table(numbers))
        if arguments.rates is not None:
            console.print(f"pass rates of {len(task.questions):,} questions: {arguments.rates}", markup=False)


def _task(arguments: EvalArguments, recipe: Recipe | None) -> Task:
    """Take each setting from the arguments, or else from the run's recipe, or else from the defaults."""
    if recipe is None and arguments.data is None:
        raise UserError(["eval: --data FILE is needed: a model folder has no held-out questions"])
    if recipe is None or arguments.data is not None:
        questions = questions_from(arguments.data or "", limit=arguments.limit)
    else:
        questions = held_out_questions(recipe)[: arguments.limit]
    if not questions:
        raise UserError(["eval: the run has no held-out questions; give some with --data FILE"])
    own = {} if recipe is None else _settings_of_run(recipe)
    given = {"rewards": arguments.rewards, "max_tokens": arguments.max_tokens, "template": arguments.template}
    chosen = {**DEFAULTS, **own, **{name: value for name, value in given.items() if value is not None}}
    if chosen["rewards"] == []:
        raise UserError(["eval: the run has reward models only; --rewards NAME decides which answers are right"])
    sampling = SamplingParams(
        temperature=_temperature(arguments),
        max_tokens=chosen["max_tokens"],
        stop=chosen["stop"],
        stop_token_ids=chosen["stop_token_ids"],
    )
    return Task(
        questions=questions,
        rewards=chosen["rewards"],
        timeout=chosen["timeout"],
        sampling=sampling,
        template=chosen["template"],
        system=chosen["system"],
    )


def _settings_of_run(recipe: Recipe) -> dict[str, Any]:
    return {
        "rewards": [{**spec, "weight": weight} for spec, weight in recipe.reward_functions],
        "timeout": recipe.reward_limits.timeout,
        "max_tokens": recipe.sampling.max_tokens,
        "stop": recipe.sampling.stop,
        "stop_token_ids": recipe.sampling.stop_token_ids,
        "template": recipe.data.template,
        "system": recipe.data.system,
    }


def _temperature(arguments: EvalArguments) -> float:
    """Return the given temperature, else 0 for one answer per question and 1 for several."""
    if arguments.temperature is None:
        return 0.0 if arguments.k == 1 else 1.0
    if arguments.temperature == 0 and arguments.k > 1:
        raise UserError([f"eval: at temperature 0 all {arguments.k} answers to a question are equal; use --k 1"])
    return arguments.temperature


def _evaluation(source: ModelRef, task: Task, arguments: EvalArguments) -> Evaluation:
    reward = load_reward(task.rewards, timeout=task.timeout)
    try:
        policy = Policy.load(source.model, device=arguments.device, stop_token_ids=task.sampling.stop_token_ids)
        prompts = tokenise(
            task.questions,
            policy.tokenizer,
            max_tokens=None if policy.context is None else policy.context - 1,
            template=task.template,
            system=task.system,
            overlong="refuse",
        )
        engine = open_engine(source.recipe, policy, seed=arguments.seed)
        return evaluate(engine, SingleTurn(reward), prompts, task.sampling, k=arguments.k)
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
    table = Table("", *numbers)
    for row in next(iter(numbers.values())):
        table.add_row(
            "95 % interval" if row == "ci95" else row, *(_formatted(row, each[row]) for each in numbers.values())
        )
    return table


def _formatted(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(f"{each:.1%}" for each in value)
    return f"{value:.1%}" if name.startswith(SHARES) else f"{value:g}"
