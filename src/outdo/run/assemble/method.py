"""Build the pieces of a method - objective, advantage, optimiser, critic, stop rule - from their names in a recipe.

A function with positional parameters is the piece itself, and the recipe's options are bound to it:
`def surrogate(log_ratio, logprobs, advantages, batch, *, sharpness=1.0)`. A function without them returns the piece:
`def clip(*, low, high)`. An option that the recipe knows already, such as the longest answer, need not be written.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch
from torch import nn

from outdo.algorithms.adaptive import Adaptive
from outdo.algorithms.advantages import (
    Advantage,
    baseline_first,
    chain,
    fill_right,
    group_centred,
    kl_penalty,
    per_token,
    reinforce_pp,
    to_go,
    without_truncated,
)
from outdo.algorithms.advantages.signal import cannot_be_asked
from outdo.algorithms.objectives.base import ComposedObjective, Objective, PlainObjective
from outdo.algorithms.objectives.compat import compat
from outdo.algorithms.objectives.corrections import product, truncate
from outdo.algorithms.objectives.environment import WithEnvironment
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.config.adapters import with_names_of_peft
from outdo.config.methods import LIBRARY_OPTIONS
from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    COEFFICIENTS,
    COMPOSED_NUMBERS,
    COMPOSED_PIECES,
    CORRECTIONS,
    CRITICS,
    DIVERGENCES,
    OBJECTIVES,
    SCHEDULES,
    STOPS,
)
from outdo.config.options import corrects_by_default
from outdo.config.recipe import Piece, Recipe
from outdo.config.rules import optimiser_steps
from outdo.models.adapter import adapter_config
from outdo.models.critic import Critic, check_critic
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.types import Batch, Stop
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve, signature_of

if TYPE_CHECKING:
    from peft import PeftConfig


LIMITED = ("level", "divergence")
"""The pieces of an objective that `compat` does not replace, but limits."""


def objective_of(recipe: Recipe) -> Objective:
    """Build the recipe's objective: a preset, with some pieces replaced, in the conventions of `train.compat`.

    An option that is written in the recipe overrides a convention, but for the limits that the library has for each
    level and each divergence. Where the engine is not the trainer, an objective
    without a correction gets truncated importance weights, unless the recipe has `correction = "none"`.
    """
    piece, train = recipe.train.objective, recipe.train
    objective = build_objective(piece, filled=known_values(recipe))
    if corrects_by_default(recipe) and isinstance(objective, ComposedObjective) and not objective.bypass:
        objective = replace(objective, correction=objective.correction or truncate())
    if train.compat == "outdo":
        return objective
    if not isinstance(objective, ComposedObjective):
        raise UserError(
            [f'train.compat = "{train.compat}": {piece.name} is not an objective that other libraries have']
        )
    chosen = [field.name for field in fields(objective) if field.name in piece.options and field.name not in LIMITED]
    return replace(compat(train.compat, objective), **{name: getattr(objective, name) for name in chosen})


def piece_mistakes(recipe: Recipe) -> list[str]:
    """Build the pieces of a recipe; return every fault of their options."""
    mistakes: list[str] = []
    for make in (
        objective_of,
        lambda recipe: advantage_of(recipe, penalty_of(recipe)),
        advantage_of_rewards,
        stop_of,
        optimiser_of,
        adapter_of,
        _check_critic,
    ):
        try:
            make(recipe)
        except UserError as error:
            mistakes += error.problems
    return list(dict.fromkeys(mistakes))


def build_objective(piece: Piece, *, filled: Mapping[str, Any] | None = None) -> Objective:
    """Build a preset with its own options, and with those of its pieces replaced that the options name.

    Raises `UserError` with the faults that the preset or a piece finds in its options.
    """
    parameters = signature_of(OBJECTIVES.get(piece.name, piece.name)).parameters
    replaceable = (COMPOSED_PIECES.keys() | COMPOSED_NUMBERS.keys()) - set(parameters)
    replaced = {name: value for name, value in piece.options.items() if name in replaceable}
    try:
        options = {name: _number(name, value) for name, value in piece.options.items() if name not in replaceable}
        preset = instantiate(Piece(name=piece.name, options=options), OBJECTIVES, filled)
        objective = preset if hasattr(preset, "prepare") else PlainObjective(preset)
        if not replaced:
            return objective
        if not isinstance(objective, ComposedObjective):
            raise ValueError(f"it has no {', no '.join(replaced)} to replace")
        if "beta" in replaced or ("divergence" in replaced and objective.kl_ratio):
            # the factor ρ where it makes the gradient that of the reverse KL
            divergence = Piece.model_validate(replaced.get("divergence", "k3")).name
            replaced = {"kl_ratio": divergence in ("k1", "k3"), **replaced}
        echo = replaced.pop("echo", 0)
        objective = replace(objective, **{name: _override(name, value, filled) for name, value in replaced.items()})
        return WithEnvironment.of(objective, echo) if echo else objective
    except (TypeError, ValueError) as error:
        raise UserError([f"train.objective: {piece.name}: {error}"]) from error


def advantage_of(
    recipe: Recipe, penalty: SupportsFloat | None = None, weights: Mapping[str, float] | None = None
) -> Advantage:
    """Build what turns rewards into advantages: subtract the KL, estimate, and mask truncated answers.

    `penalty` is the coefficient of the KL in the reward, from `penalty_of`; `weights` are those of the reward's parts.
    """
    train = recipe.train
    filled = {**known_values(recipe), "weights": weights}
    filled |= LIBRARY_OPTIONS.get(train.compat, {})
    piece = recipe.advantage
    estimator = instantiate(piece, ADVANTAGES, filled)
    takes_batch = signature_of(ADVANTAGES.get(piece.name, piece.name)).parameters[:1] == ("batch",)
    if piece.name in ADVANTAGES:  # a wrong option is an error now, not after a rollout
        two_answers = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
        within_range("train.advantage", estimator, *([Batch.from_groups([])] if takes_batch else two_answers))
    steps: list[Advantage] = [estimator if takes_batch else per_token(estimator)]
    if train.kl_in_reward is not None and penalty is not None:
        divergence = resolve(DIVERGENCES.get(train.kl_in_reward.name, train.kl_in_reward.name))
        subtract = kl_penalty(divergence, beta=penalty)
        if train.kl_in_reward.options.get("after_baseline"):
            steps = _with_kl_after_baseline(piece.name, estimator, subtract)
        else:
            steps = [subtract, *steps]
    if "right" in recipe.advantage_requires:
        steps.insert(0, fill_right)  # `check` has refused it where right is not defined
    if train.mask_truncated:
        steps.append(without_truncated)
    return steps[0] if len(steps) == 1 else chain(*steps)


def advantage_of_rewards(recipe: Recipe, weights: Mapping[str, float] | None = None) -> Advantage:
    """Build the advantage of the rewards alone, without a KL in them, which dynamic sampling asks about each group.

    `weights` are those of the reward's parts. Raises `UserError` if `train.dynamic_sampling` is set and it cannot ask.
    """
    advantage, rounds = advantage_of(recipe, None, weights), recipe.train.dynamic_sampling
    if rounds and (reason := cannot_be_asked(advantage)):
        raise UserError([f"train.dynamic_sampling = {rounds}: {recipe.advantage.name} {reason}"])
    return advantage


def _with_kl_after_baseline(name: str, estimator: Any, subtract: Advantage) -> list[Advantage]:
    """Return the steps that subtract the KL from the tokens after the baseline, and whiten where the method does."""
    if name == "reinforce_pp_baseline":
        whitening = estimator.keywords if isinstance(estimator, functools.partial) else {}
        return [baseline_first(group_centred), subtract, functools.partial(reinforce_pp, **whitening)]
    return [baseline_first(estimator), subtract, to_go]


def penalty_of(recipe: Recipe) -> SupportsFloat | None:
    """Return the coefficient of the KL in the reward: a number, or one that follows a target; None if there is none."""
    penalty = recipe.train.kl_in_reward
    if penalty is None:
        return None
    return within_range("train.kl_in_reward.beta", _number, "beta", penalty.options["beta"])


def instantiate(piece: Piece, known: Mapping[str, str], filled: Mapping[str, Any] | None = None) -> Any:
    """Build a piece with its options; `filled` has values for options that the recipe leaves out."""
    spec = known.get(piece.name, piece.name)
    signature = signature_of(spec)
    options = {name: value for name, value in (filled or {}).items() if name in signature.options} | dict(piece.options)
    function = resolve(spec)
    positional = [name for name in signature.required if name not in signature.options]
    if not positional:
        return function(**options)
    return functools.partial(function, **options) if options else function


def known_values(recipe: Recipe) -> dict[str, Any]:
    """Return values from elsewhere in the recipe that a piece may have as options."""
    return {"length": recipe.sampling.max_tokens, "max_tokens": recipe.sampling.max_tokens}


def stop_of(recipe: Recipe) -> Stop | None:
    """Build the rule that ends the passes over a batch. Raises `UserError` for an option out of its range."""
    return None if recipe.train.stop is None else within_range("train.stop", instantiate, recipe.train.stop, STOPS)


def optimiser_of(recipe: Recipe) -> OptimiserSettings:
    """Return the optimiser's settings; the schedule ends with the last optimiser step of the run.

    Raises `UserError` for an option out of its range, and for a library that is not installed.
    """
    optim = recipe.optim
    algorithm = instantiate(optim.algorithm, ALGORITHMS)
    schedule, total = instantiate(optim.schedule, SCHEDULES), optimiser_steps(recipe)
    within_range("optim.algorithm", algorithm, [nn.Parameter(torch.zeros(2, 2))])  # before any model is loaded
    within_range("optim.schedule", schedule, 0, total)
    return OptimiserSettings(
        lr=optim.lr,
        schedule=schedule,
        total=total,
        algorithm=algorithm,
        clip_norm=optim.clip_norm,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The method of a run."""

    advantage: Advantage
    objective: Objective
    stop: Stop | None
    requires: Requires  # of advantage and objective together
    adaptive: Mapping[str, Adaptive]  # coefficients that follow a target, by the name of their metric


def method_of(recipe: Recipe, weights: Mapping[str, float]) -> Method:
    """Build the method of a recipe; `weights` are those of the parts of its reward."""
    objective, penalty = objective_of(recipe), penalty_of(recipe)
    advantage = advantage_of(recipe, penalty, weights)
    return Method(
        advantage=advantage,
        objective=objective,
        stop=stop_of(recipe),
        requires=requirements_of(objective, advantage),
        adaptive=adaptive_of(objective, penalty),
    )


def adapter_of(recipe: Recipe) -> "PeftConfig | None":
    """Build the configuration of the recipe's adapter. Raises `UserError` for an option that PEFT refuses."""
    return None if recipe.train.adapter is None else peft_config("train.adapter", recipe.train.adapter)


def peft_config(key: str, adapter: Piece) -> "PeftConfig":
    """Build the configuration of an adapter. Raises `UserError`, beginning with `key`, for an option out of range."""
    piece = with_names_of_peft(adapter)
    return within_range(key, functools.partial(adapter_config, piece.name, **piece.options))


def critic_of(recipe: Recipe, policy: Policy) -> Critic | None:
    """Build the critic of a policy. Raises `UserError` for an option out of its range."""
    critic = recipe.critic
    if critic is None:
        return None
    weight = critic.options.get("weight")
    options = {} if weight is None else {"weight": _override("weight", weight, known_values(recipe))}
    critic = Piece(name=critic.name, options={**critic.options, **options})
    return within_range("train.critic", instantiate(critic, CRITICS), policy)


def _check_critic(recipe: Recipe) -> None:
    """Check the options of a built-in critic. Raises `UserError` for one out of its range."""
    critic = recipe.critic
    if critic is None or critic.name not in CRITICS:
        return
    options = dict(critic.options)
    if (weight := options.pop("weight", None)) is not None:
        within_range("train.critic.weight", _override, "weight", weight, known_values(recipe))
    options.pop("path", None)
    within_range("train.critic", functools.partial(check_critic, **options))


def adaptive_of(objective: Objective, penalty: SupportsFloat | None) -> dict[str, Adaptive]:
    """Return the coefficients that change during a run, by the name of their metric."""
    coefficients = {
        "beta": getattr(objective, "beta", None),
        "entropy_bonus": getattr(objective, "entropy_bonus", None),
        "kl_in_reward": penalty,
    }
    return {name: value for name, value in coefficients.items() if hasattr(value, "observe")}


def within_range(key: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `make`; its ValueError is a mistake in the recipe."""
    try:
        return make(*arguments)
    except UserError as error:
        raise UserError([f"{key}: {mistake}" for mistake in error.problems]) from error
    except ValueError as error:
        raise UserError([f"{key}: {error}"]) from error


def _override(name: str, value: Any, filled: Mapping[str, Any] | None) -> Any:
    if name in COMPOSED_NUMBERS:
        return _number(name, value)
    if name == "correction" and isinstance(value, Sequence) and not isinstance(value, str):
        return product(*(instantiate(Piece.model_validate(option), CORRECTIONS, filled) for option in value))
    return instantiate(Piece.model_validate(value), COMPOSED_PIECES[name], filled)


def _number(name: str, value: Any) -> Any:
    """Return a number, or for a table a coefficient that follows a target."""
    return resolve(COEFFICIENTS[name])(**value) if name in COEFFICIENTS and isinstance(value, Mapping) else value
