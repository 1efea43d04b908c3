"""Every number of every piece of a method is refused before a model loads, or the method computes with it."""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from engine_cases import fresh
from toys import batch_of, rollout

from outdo.algorithms.advantages import compute_advantages
from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    COEFFICIENTS,
    COMPOSED_NUMBERS,
    COMPOSED_PIECES,
    CRITICS,
    OBJECTIVES,
    SCHEDULES,
    STOPS,
)
from outdo.config.recipe import Recipe
from outdo.config.rules import refusals
from outdo.models.optimiser import Optimiser
from outdo.run.assemble.method import (
    advantage_of,
    critic_of,
    objective_of,
    optimiser_of,
    penalty_of,
    piece_mistakes,
    stop_of,
)
from outdo.types import Batch, TokenScores, Update
from outdo.utils.imports import signature_of

NUMBERS = (-1, 0, 0.5, math.nan, math.inf, 1e300)
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "clip": {"low": 0.2, "high": 0.2},
    "reject": {"high": 0.1},
    "off_policy_rows": {"limit": 0.1},
    "kl_cov": {},
}
"""The options that a piece must have besides."""

COEFFICIENT = {"start": 0.1, "target": 0.1}


def numbers_of(spec: str) -> list[str]:
    """The options of a piece that may be numbers, by their defaults."""
    signature = signature_of(spec)
    return [name for name in signature.options if not isinstance(signature.defaults.get(name), bool | str)]


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings of a recipe, as key and table, with one number that may be wrong."""
    tables = {
        "train.objective": OBJECTIVES,
        "train.advantage": ADVANTAGES,
        "train.stop": STOPS,
        "optim.algorithm": {name: spec for name, spec in ALGORITHMS.items() if name != "adamw8bit"},
        "optim.schedule": SCHEDULES,
    }
    for key, table in tables.items():
        for (name, spec), number in product(table.items(), NUMBERS):
            required = {"kl": 1.0} if name == "first_of" else {}
            yield from ((key, {"name": name, **required, option: number}) for option in numbers_of(spec))
    for kind, table in COMPOSED_PIECES.items():
        if kind in ("divergence_weight", "entropy_weight"):  # those of `weight`
            continue
        for (name, spec), number in product(table.items(), NUMBERS):
            further = {"batch_transform": "covariant"} if (kind, name) == ("surrogate", "kl_cov") else {}
            for option in numbers_of(spec):
                piece = {"name": name, **NEEDED.get(name, {}), option: number}
                yield "train.objective", {"name": "grpo", kind: piece, **further}
    for number in NUMBERS:
        yield from (("train.objective", {"name": "grpo", option: number}) for option in COMPOSED_NUMBERS)
        yield "train.kl_in_reward", {"name": "k1", "beta": number}
        for coefficient, spec in COEFFICIENTS.items():
            for option in numbers_of(spec):
                table = {**COEFFICIENT, option: number}
                yield "train.objective", {"name": "grpo", coefficient: table}
                if coefficient == "beta":
                    yield "train.kl_in_reward", {"name": "k1", "beta": table}


def recipe_of(key: str, table: Mapping[str, Any]) -> Recipe:
    section, name = key.split(".")
    return Recipe.model_validate({"model": "m", "data": {"path": "d.jsonl"}, section: {name: dict(table)}})


def measured() -> Batch:
    """A batch with everything that an objective or an advantage reads."""
    members = [(1.0, True), (0.0, False), (0.5, False)]
    batch = batch_of(
        *([rollout(n + 1, value, right=right, reward_parts={"a": value}) for n, (value, right) in enumerate(members)],)
        * 2
    )
    old = -0.1 - torch.rand(batch.token_ids.shape, generator=torch.Generator().manual_seed(0))
    return batch.with_(
        old_logprobs=old,
        ref_logprobs=old - 0.1,
        rollout_logprobs=old + 0.01,
        old_sums={"entropy": -old, "collision": (2 * old).exp() + 0.1},
        values=old,
        end_values=torch.zeros(len(batch)),
        baselines=torch.zeros(len(batch)),
    )


def compute(recipe: Recipe, batch: Batch) -> list[torch.Tensor]:
    """What the method of a recipe computes of a batch, and weights after two steps of its optimiser."""
    objective = objective_of(recipe)
    prepared = objective.prepare(compute_advantages(advantage_of(recipe, penalty_of(recipe)), batch))
    logprobs = (batch.old_logprobs + 0.3).clamp(max=-0.01).requires_grad_()
    terms = objective(TokenScores(logprobs=logprobs, sums={"entropy": -logprobs}), prepared)
    if (stop := stop_of(recipe)) is not None:
        stop(prepared, [Update(metrics={}, tokens={"logprobs": logprobs.detach()})] * 2)
    model = torch.nn.Linear(2, 2)
    optimiser = Optimiser(model, optimiser_of(recipe))
    for _ in range(2):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimiser.step(0.5)
    return [*torch.autograd.grad(terms.loss, logprobs, allow_unused=True), prepared.advantages, *model.parameters()]


def test_every_number_of_a_method_is_refused_before_a_run_or_can_be_computed_with() -> None:
    batch = measured()
    accepted = 0
    for key, table in settings():
        recipe = recipe_of(key, table)
        if refusals(recipe) or piece_mistakes(recipe):
            continue
        accepted += 1
        assert not any(value.isnan().any() for value in compute(recipe, batch)), (key, table)
    assert accepted > 100


@pytest.mark.parametrize("name", CRITICS)
def test_every_number_of_a_critic_is_refused_before_a_model_loads_or_makes_one(name: str) -> None:
    policy = fresh()
    options = [option for option in numbers_of(CRITICS[name]) if option != "weight"]
    refused: dict[str, list[float]] = {option: [] for option in options}
    for option, number in product(options, NUMBERS):
        settings = {"advantage": "gae", "critic": {"name": name, option: number}}
        recipe = Recipe.model_validate({"model": "m", "data": {"path": "d.jsonl"}, "train": settings})
        if refusals(recipe) or piece_mistakes(recipe):
            refused[option].append(number)
        else:
            assert critic_of(recipe, policy) is not None, (option, number)
    assert refused["clip"][:2] == [-1, 0]
    assert all(1e300 in numbers for numbers in refused.values())


def test_a_coefficient_may_start_at_a_whole_number() -> None:
    for key, table in (
        ("train.objective", {"name": "grpo", "beta": {"start": 1, "target": 1}}),
        ("train.objective", {"name": "grpo", "entropy_bonus": {"start": 1, "target": 1}}),
        ("train.kl_in_reward", {"name": "k1", "beta": {"start": 1, "target": 1}}),
    ):
        recipe = recipe_of(key, table)
        assert refusals(recipe) + piece_mistakes(recipe) == []
        compute(recipe, measured())


def test_the_marks_of_kl_cov_are_needed_by_its_surrogate() -> None:
    (mistake,) = refusals(recipe_of("train.objective", {"name": "grpo", "surrogate": "kl_cov"}))
    assert mistake == 'train.objective.surrogate: kl_cov needs batch_transform = "covariant", which marks its tokens'
