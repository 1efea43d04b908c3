"""Read which options the pieces of a recipe run with from their source, without running it."""

from collections.abc import Iterator, Mapping
from typing import Any

from outdo.config.methods import LIBRARY_OPTIONS, facts_of_objective
from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    BUILTIN_ENGINE,
    COMPOSED_NUMBERS,
    COMPOSED_PIECES,
    CRITICS,
    DIVERGENCES,
    OBJECTIVES,
    REWARDS,
    SCHEDULES,
    STOPS,
)
from outdo.config.recipe import Piece, Recipe
from outdo.config.teachers import REFERENCE
from outdo.utils.imports import signature_of


def effective_options(piece: Piece, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a piece runs with: the literal defaults in its source, then those of the recipe."""
    signature = signature_of(known.get(piece.name, piece.name))
    return {name: signature.defaults.get(name) for name in signature.options} | dict(piece.options)


def is_of_surrogate(option: str) -> bool:
    """Return whether an option of a composed objective has no effect if the recipe names another surrogate."""
    return option not in COMPOSED_PIECES and option not in COMPOSED_NUMBERS and option != "length"


def needs_reference(recipe: Recipe, objective_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether the recipe's pieces use a reference policy, as far as their source shows.

    `objective_options` are the effective options of the objective, where the caller has them.
    """
    options = objective_options or effective_options(recipe.train.objective, OBJECTIVES)
    beta = options.get("beta", 0.0)
    asked = beta != 0 or recipe.train.kl_in_reward is not None or "reference" in recipe.advantage_requires
    return asked or any(teacher.model == REFERENCE for teacher in recipe.teachers)


def has_teacher_divergence(recipe: Recipe) -> bool:
    """Return whether the objective has a divergence from the teachers, as far as its source shows."""
    objective = recipe.train.objective
    of_preset = facts_of_objective(objective.name).from_teacher
    return bool(objective.options.get("teacher_beta", of_preset))


def needs_teacher(recipe: Recipe) -> bool:
    """Return whether the recipe's pieces use a teacher, as far as their source shows."""
    return has_teacher_divergence(recipe) or "teacher" in recipe.advantage_requires


def samples_elsewhere(recipe: Recipe) -> bool:
    """Return whether the engine is not the policy: another program computes, or older weights sample."""
    return recipe.engine.name != BUILTIN_ENGINE or recipe.train.max_staleness > 0


def corrects_by_default(recipe: Recipe) -> bool:
    """Return whether the objective gets a correction that the recipe does not name: the engine is not the policy."""
    return samples_elsewhere(recipe) and "correction" not in recipe.train.objective.options


def starts_from_the_engine(objective: Piece) -> bool:
    """Return whether the ratio of an objective is that to the probabilities which the engine reported."""
    return bool(objective.options.get("bypass")) or facts_of_objective(objective.name).from_engine


def describe_method(recipe: Recipe) -> list[str]:
    """Return one line for each piece of the method, with every option that it runs with."""
    train = recipe.train
    pieces: list[tuple[str, Piece | None, Mapping[str, str]]] = [
        ("objective", train.objective, OBJECTIVES),
        ("advantage", recipe.advantage, ADVANTAGES),
        ("kl_in_reward", train.kl_in_reward, DIVERGENCES),
        ("critic", recipe.critic, CRITICS),
        ("stop", train.stop, STOPS),
        ("optimiser", recipe.optim.algorithm, ALGORITHMS),
        ("schedule", recipe.optim.schedule, SCHEDULES),
    ]
    lines = [_describe_piece(role, piece, known, recipe) for role, piece, known in pieces if piece is not None]
    if train.adapter is not None:
        lines.append(f"adapter: {_listed(train.adapter.name, train.adapter.options)}")
    facts = facts_of_objective(train.objective.name)
    if corrects_by_default(recipe) and facts.is_composed and not facts.from_engine:
        lines.append(
            'correction: truncate, as the engine is not the policy; "none" as option of the objective: without'
        )
    if train.compat != "outdo":
        lines[0] += f", in the conventions of {train.compat} (docs/methods: means, clamps, clips)"
    return lines


def _describe_piece(role: str, piece: Piece, known: Mapping[str, str], recipe: Recipe) -> str:
    options = effective_options(piece, known)
    if "length" in options and options["length"] is None:  # the recipe knows it
        options["length"] = recipe.sampling.max_tokens
    if "surrogate" in piece.options and piece.name in OBJECTIVES:
        options = {name: value for name, value in options.items() if not is_of_surrogate(name)}
    conventions = LIBRARY_OPTIONS.get(recipe.train.compat, {})
    options |= {name: value for name, value in conventions.items() if name in options and name not in piece.options}
    return f"{role}: {_listed(piece.name, options)}"


def _listed(name: str, options: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{option} = {value}" for option, value in options.items() if value is not None)
    return name + (f" ({listed})" if listed else "")


def list_pieces() -> Iterator[str]:
    """Yield the lines of `outdo config --pieces`: every named piece with its options; `?` marks a required one."""
    tables = {"train.objective": OBJECTIVES, "train.advantage": ADVANTAGES, "train.kl_in_reward": DIVERGENCES}
    tables |= {f"train.objective.{name}": known for name, known in COMPOSED_PIECES.items()}
    tables |= {"train.critic": CRITICS, "train.stop": STOPS, "optim.algorithm": ALGORITHMS}
    tables |= {"optim.schedule": SCHEDULES, "rewards": REWARDS}
    for table, known in tables.items():
        yield table
        for name, spec in known.items():
            signature = signature_of(spec)
            options = [f"{option} = {signature.defaults.get(option, '?')}" for option in signature.options]
            yield f"    {name:<22}{', '.join(options)}".rstrip()
