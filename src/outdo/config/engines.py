"""The engine that a recipe may name: what is wrong with it, asked of the part of outdo that has it."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outdo.config.method_rules import check_name
from outdo.config.names import BUILTIN_ENGINE, ENGINES, RAY_CHECK, REMOTE_ENGINE
from outdo.config.recipe import Piece, Recipe
from outdo.utils.extras import load_extra, missing_extra
from outdo.utils.imports import signature_of
from outdo.utils.options import BOOLEAN, POSITIVE, TEXT, Check, option_mistakes

PARTIAL_ROLLOUTS = "partial_rollouts"
"""The option of every engine with a copy of the weights: newer ones continue an answer that older ones began."""

RAY = "ray"
"""The place of the built-in engine's processes on the machines of a Ray cluster."""

RAY_ADDRESS = "RAY_ADDRESS"
"""The variable of the environment that names a Ray cluster that runs already."""

OF_COPIES: Mapping[str, Check] = {"max_difference": POSITIVE, PARTIAL_ROLLOUTS: BOOLEAN}
"""The options of every engine with a copy of the weights. The engine itself does not get them."""


def _no_mistakes(asked: Any) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """What is wrong with an engine of a recipe. Each function yields a sentence for each mistake; none imports torch.

    `options` reads the options alone, `recipe` the other settings, and `machine` what is installed on this machine.
    `whole_model` reads the options of an engine that has to get all weights of a model.

    `borrowed_share` returns the share of the trainer's device that the engine takes while it samples, and gives back.
    """

    options: Callable[[Mapping[str, Any]], Iterator[str]]
    recipe: Callable[[Recipe], Iterator[str]] = _no_mistakes
    machine: Callable[[Mapping[str, Any]], Iterator[str]] = _no_mistakes
    whole_model: Callable[[Mapping[str, Any]], Iterator[str]] = _no_mistakes
    borrowed_share: Callable[[Mapping[str, Any]], float] = lambda options: 0.0


def check_engine(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the engine of a recipe, whatever is installed on this machine."""
    mistakes = list(engine_mistakes(recipe.engine))
    yield from mistakes or _check_of(recipe.engine).recipe(recipe)


def engine_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the name and the options of an engine, without looking at any environment."""
    if piece.name == BUILTIN_ENGINE and not piece.options:
        return
    if "across_updates" in piece.options:
        yield f"engine.across_updates: unknown option; it is called {PARTIAL_ROLLOUTS}"
        return
    checks = {name: kind.check for name, kind in ENGINES.items()}
    if wrong_name := list(check_name("engine", piece.name, checks)):
        yield from wrong_name
    elif is_remote(piece) and (missing := missing_extra(REMOTE_ENGINE, f'engine = "{piece.name}"')):
        yield missing
    else:
        yield from _check_of(piece).options(piece.options)


def machine_mistakes(piece: Piece) -> list[str]:
    """Return what is wrong with an engine on this machine, whose options have no mistakes."""
    placed = ray_mistakes("engine") if piece.options.get("place") == RAY else []
    return placed or list(_check_of(piece).machine(piece.options))


def whole_model_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what keeps an engine, whose options have no mistakes, from getting all weights of a model."""
    yield from _check_of(piece).whole_model(piece.options)


def ray_mistakes(key: str) -> list[str]:
    """Return what keeps this machine from placing by Ray what `key` of a recipe names."""
    if mistake := missing_extra(RAY_CHECK, f"{key}.place"):
        return [mistake]
    return list(load_extra(RAY_CHECK, key)(key))


def reward_place_mistakes(recipe: Recipe) -> list[str]:
    """Return what keeps this machine from placing the rewards of a recipe by Ray; empty if it places none."""
    placed = [f"rewards.{reward.name}" for reward in recipe.rewards if reward.place == RAY]
    return [mistake for key in placed for mistake in ray_mistakes(key)]


def is_placed(recipe: Recipe) -> bool:
    """Return whether Ray places the engine or a reward of a recipe."""
    return recipe.engine.options.get("place") == RAY or any(reward.place == RAY for reward in recipe.rewards)


def borrowed_share(piece: Piece) -> float:
    """Return the share of the trainer's device that an engine takes while it samples, and gives back after it."""
    return _check_of(piece).borrowed_share(piece.options)


def is_remote(piece: Piece) -> bool:
    """Return whether an engine samples in processes of its own, from a copy of the weights."""
    return piece.name != BUILTIN_ENGINE or "processes" in piece.options


def has_partial_rollouts(piece: Piece) -> bool:
    """Return whether newer weights continue an answer that older ones began."""
    return piece.options.get(PARTIAL_ROLLOUTS) is True


def folder_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a folder that several machines share."""
    folder = options.get("folder")
    if isinstance(folder, str) and not os.access(Path(folder).expanduser(), os.W_OK | os.X_OK):
        yield f"engine.folder: {folder} is not a folder of this machine that can be written to"


def _check_of(piece: Piece) -> EngineCheck:
    """Return the check of an engine that has a right name."""
    if piece.name == BUILTIN_ENGINE and not piece.options:
        return EngineCheck(options=_no_mistakes)
    if piece.name in ENGINES:
        return load_extra(ENGINES[piece.name].check, "engine")
    return EngineCheck(options=lambda options: _own_mistakes(piece.name, options))


def _own_mistakes(spec: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the options of an engine in user's code, which gets the policy and the seed."""
    signature = signature_of(spec)
    takes = replace(signature, options=tuple(name for name in signature.options if name != "seed"))
    yield from option_mistakes("engine", spec, options, takes, own=True, checks={**OF_COPIES, "dtype": TEXT})
