"""What `outdo eval` prints: a table or JSON of the numbers of each model and data set, and how two models compare."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outdo.cli.output import print_line
from outdo.rewards import WeightedSum
from outdo.rewards.right import UNDEFINED
from outdo.run.evaluation.evaluation import Evaluation, compare_paired
from outdo.utils.text import between, for_terminal

SHARES = ("pass@", "maj@", "truncated")
"""How the names of shares begin; they are shown in per cent."""

OF_SEVERAL = {"pass": "one of {k} right", "maj": "majority of {k} right"}
"""What a share of questions means that depends on several answers to each."""
LABELS = {
    "without_verdict": "without a verdict (right or wrong)",
    "reward": "mean reward",
    "mean_length": "mean length (tokens)",
    "truncated": "answers cut off",
    "unscored": "answers without a reward",
    "n": "questions",
    "k": "answers to each",
}
"""What the table calls the numbers whose names in JSON do not say what they are."""

Results = Mapping[str, Mapping[str, Evaluation]]
"""The evaluations by data set and model."""


def print_results(results: Results, reward: WeightedSum, console: Console) -> None:
    """Print a table with a column for each model and data set, and how two models compare on each data set."""
    several = len(results) > 1
    columns = {
        f"{name}: {data}" if several else name: evaluation.summary(defined=reward.gives_verdicts)
        for data, evaluations in results.items()
        for name, evaluation in evaluations.items()
    }
    console.print(_table(columns))
    for data, evaluations in results.items():
        if len(evaluations) > 1:
            compared = compare_paired(*evaluations.values()) or "no question has a reward from both models"
            print_line(console, (f"{data}: " if several else "") + str(compared))
    print_line(console, UNDEFINED if _returns_numbers(reward, results) else reward.right_reason)


def _returns_numbers(reward: WeightedSum, results: Results) -> bool:
    """Return whether the reward that could tell what is right has returned numbers alone."""
    evaluations = [evaluation for by_model in results.values() for evaluation in by_model.values()]
    has_verdicts = any(evaluation.has_verdicts for evaluation in evaluations)  # an environment may give them
    return reward.verdicts.given is False and reward.right_rule.reward is not None and not has_verdicts


def as_json_object(results: Results, reward: WeightedSum) -> dict[str, Any]:
    """Return the numbers of one data set, or those of several by their names."""
    numbers = {data: _of_models(evaluations, reward) for data, evaluations in results.items()}
    return next(iter(numbers.values())) if len(numbers) == 1 else numbers


def _of_models(evaluations: Mapping[str, Evaluation], reward: WeightedSum) -> dict[str, Any]:
    """Return the numbers of a model, or those of two models by name, and how they compare."""
    numbers: dict[str, Any] = {
        name: evaluation.summary(defined=reward.gives_verdicts) for name, evaluation in evaluations.items()
    }
    if len(evaluations) == 1:
        return next(iter(numbers.values()))
    compared = compare_paired(*evaluations.values())
    return numbers | {"comparison": None if compared is None else asdict(compared)}


def _table(numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("", *(escape(for_terminal(name)) for name in numbers))  # a name may look like rich's markup
    for row in dict.fromkeys(name for by_row in numbers.values() for name in by_row):
        cells = (_formatted(row, by_row[row]) if row in by_row else "" for by_row in numbers.values())
        table.add_row(_label(row), *cells)
    return table


def _label(name: str) -> str:
    """Return what the table calls a number: what it means, after the name of a share of right answers."""
    if name.endswith("ci95"):
        return "95 % interval"
    kind, _, k = name.partition("@")
    if name == "pass@1":
        return "pass@1: right answers"
    if kind in OF_SEVERAL and k.isdigit():
        return f"{name}: {OF_SEVERAL[kind].format(k=k)}"
    return name.replace("_", " ") if name.startswith("left_out_of_") else LABELS.get(name, name)


def _formatted(name: str, value: Any) -> str:
    if isinstance(value, list):
        low, high = value
        return between(low, high, "{:.1%}".format if name == "ci95" else "{:.3f}".format)
    if name == "reward" or name.startswith("rewards/"):
        return f"{value:.3f}"
    return f"{value:.1%}" if name.startswith(SHARES) else f"{value:g}"
