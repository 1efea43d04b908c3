"""`outdo eval`: one model, or two side by side, on the questions of a file or of a run."""

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
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn as QuestionEnvironment
from outdo.trainer.build import held_out_questions
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
class Arguments:
    """The arguments of `outdo eval`; what is None comes from the run, if there is one, or is a default."""

    data: str | None
    rewards: str | None
    k: int
    temperature: float | None
    max_tokens: int | None
    limit: int | None
    template: str | None
    seed: int
    device: str
    rates: Path | None = None  # where each question's pass rate goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """What every model is given."""

    questions: Sequence[Question]
    rewards: Any  # what `rewards.load_reward` takes
    timeout: float
    sampling: SamplingParams
    template: str | None
    system: str | None


def run_eval(models: Sequence[str], asked: Arguments, console: Console, *, as_json: bool) -> None:
    """Evaluate the models and print a table, or one JSON object."""
    if len(set(models)) < len(models):
        raise UserError([f"eval: {models[0]} is given twice; --against takes another model"])
    if asked.rates is not None:
        if len(models) > 1:
            raise UserError(["eval: --rates are those of one model; leave out --against"])
        pass_rates.check_output_path(asked.rates)
    sources = [find_model(model) for model in models]
    recipe = next((source.recipe for source in sources if source.recipe is not None), None)
    exam = _exam(asked, recipe)
    examined = {source.name: _examined(source, exam, asked) for source in sources}
    numbers = {name: evaluation.summary() for name, evaluation in examined.items()}
    if asked.rates is not None:
        pass_rates.write(asked.rates, _rates(*examined.values()))
    if as_json:
        console.file.write(json.dumps(next(iter(numbers.values())) if len(numbers) == 1 else numbers) + "\n")
    else:
        console.print(_table(numbers))
        if asked.rates is not None:
            console.print(f"pass rates of {len(exam.questions):,} questions: {asked.rates}", markup=False)


def _exam(asked: Arguments, recipe: Recipe | None) -> Exam:
    """The arguments, with the run's recipe behind them and the defaults behind that."""
    if recipe is None and asked.data is None:
        raise UserError(["eval: --data FILE is needed, for a model folder has no held-out questions of its own"])
    if recipe is None or asked.data is not None:
        questions = questions_from(asked.data or "", limit=asked.limit)
    else:
        questions = held_out_questions(recipe)[: asked.limit]
    if not questions:
        raise UserError(["eval: the run held out no questions; --data FILE names some"])
    own = {} if recipe is None else _of_run(recipe)
    given = {"rewards": asked.rewards, "max_tokens": asked.max_tokens, "template": asked.template}
    chosen = {**DEFAULTS, **own, **{name: value for name, value in given.items() if value is not None}}
    if chosen["rewards"] == []:
        raise UserError(["eval: the run's rewards are all learnt; --rewards NAME says which answers are right"])
    how = {name: chosen.pop(name) for name in ("max_tokens", "stop", "stop_token_ids")}
    sampling = SamplingParams(temperature=_temperature(asked), **how)
    return Exam(questions=questions, sampling=sampling, **chosen)


def _of_run(recipe: Recipe) -> dict[str, Any]:
    return {
        "rewards": [{**spec, "weight": weight} for spec, weight in recipe.reward_functions],
        "timeout": recipe.reward_limits.timeout,
        "max_tokens": recipe.sampling.max_tokens,
        "stop": recipe.sampling.stop,
        "stop_token_ids": recipe.sampling.stop_token_ids,
        "template": recipe.data.template,
        "system": recipe.data.system,
    }


def _temperature(asked: Arguments) -> float:
    """As asked, else 0 for one answer and 1 for several."""
    if asked.temperature is None:
        return 0.0 if asked.k == 1 else 1.0
    if asked.temperature == 0 and asked.k > 1:
        raise UserError([f"eval: at temperature 0 the {asked.k} answers to a question are one; use --k 1"])
    return asked.temperature


def _examined(source: ModelRef, exam: Exam, asked: Arguments) -> Evaluation:
    reward = load_reward(exam.rewards, timeout=exam.timeout)
    try:
        policy = Policy.load(source.model, device=asked.device, stop_token_ids=exam.sampling.stop_token_ids)
        prompts = tokenise(
            exam.questions,
            policy.tokenizer,
            max_tokens=None if policy.context is None else policy.context - 1,
            template=exam.template,
            system=exam.system,
            overlong="refuse",
        )
        engine = BuiltinEngine(policy, seed=asked.seed)
        return evaluate(engine, QuestionEnvironment(reward), prompts, exam.sampling, k=asked.k)
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
        table.add_row("95 % interval" if row == "ci95" else row, *(_shown(row, each[row]) for each in numbers.values()))
    return table


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(f"{each:.1%}" for each in value)
    return f"{value:.1%}" if name.startswith(SHARES) else f"{value:g}"
