"""The engine that a recipe may name: its options, and the environment that vLLM has of its own.

vLLM is never imported here. Its options are read from its source, in the environment that the recipe names.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

from outdo.config.method_rules import check_name
from outdo.config.names import BUILTIN_ENGINE, ENGINES, QUANTISED
from outdo.config.recipe import Piece, Recipe
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import BOOLEAN, NATURAL, POSITIVE, TEXT, Check, is_url, option_mistakes

VLLM = "vllm"
ENGINE_ARGUMENTS = "engine/arg_utils.py:EngineArgs"
"""Where vLLM defines its options, in its package."""

ACROSS_UPDATES = "across_updates"
"""The option of every engine with a copy of the weights: answers go on with newer ones."""

RAY = "ray"
"""The place of the built-in engine's processes on the machines of a Ray cluster."""


def _are_devices(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) and DEVICE.fullmatch(each) for each in value)


OF_COPIES: Mapping[str, Check] = {"max_difference": POSITIVE, ACROSS_UPDATES: BOOLEAN}
"""The options of every engine with a copy of the weights."""

OWN_OPTIONS: Mapping[str, Check] = {
    "python": TEXT,
    "url": (is_url, 'a URL such as "http://host:8000"'),
    "served_model": TEXT,
    "folder": TEXT,
    "timeout": POSITIVE,
    "dtype": TEXT,
    **OF_COPIES,
}
"""The options of the engine that are not vLLM's own."""

OPTIONS_OF_PROCESSES: Mapping[str, Check] = {
    "processes": NATURAL,
    "place": (lambda value: value == RAY, f'"{RAY}", or no place for processes of this machine'),
    "folder": TEXT,
    "devices": (_are_devices, 'a list such as ["cuda:1", "cuda:2"], of "cpu", "mps" and "cuda:" with a number'),
    "timeout": POSITIVE,
    **OF_COPIES,
}
"""The options of the built-in engine, all of them for processes of its own."""

DEVICE = re.compile(r"cpu|mps|cuda:\d+")

SET_BY_OUTDO = {
    "model": "`model` of the recipe",
    "seed": "`seed` of the recipe, and the stream of each request",
    "logprobs_mode": "log-probabilities are at the sampling temperature over the whole vocabulary",
    "max_logprobs": "one log-probability of each token is needed",
    "enable_lora": "`train.adapter`",
    "tokenizer": "the tokenizer of the model",
}
"""Options of vLLM that a recipe cannot set, and what decides them."""

LOCATION = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s else '')"
ANSWER = 120.0
"""Seconds in which an interpreter must find its vllm."""


def check_engine(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the engine of a recipe, whatever is installed on this machine."""
    piece = recipe.engine
    yield from engine_mistakes(piece)
    if not is_separate(piece):
        return
    if piece.name == BUILTIN_ENGINE and recipe.weights in QUANTISED:
        yield 'engine.processes: processes cannot share quantised weights; use weights = "bfloat16"'
    sampling = recipe.sampling
    filters = {"top_p": sampling.top_p < 1, "top_k": sampling.top_k > 0, "min_p": sampling.min_p > 0}
    for name, is_set in filters.items():
        if is_set and piece.name == VLLM:
            yield (
                f"sampling.{name} = {getattr(sampling, name)}: vLLM reports log-probabilities after this filter, and "
                f'training needs them over the whole vocabulary; leave it out, or use engine = "{BUILTIN_ENGINE}"'
            )


def engine_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the name and the options of an engine, without looking at any environment."""
    if wrong_name := list(check_name("engine", piece.name, ENGINES)):
        yield from wrong_name
    elif piece.name == VLLM:
        yield from _vllm_mistakes(piece.options)
    elif piece.name == BUILTIN_ENGINE:
        yield from _builtin_mistakes(piece.options)
    else:
        signature = signature_of(piece.name)  # it is called with the policy and the seed
        takes = replace(signature, options=tuple(name for name in signature.options if name != "seed"))
        checks = {**OF_COPIES, "dtype": TEXT}
        yield from option_mistakes("engine", piece.name, piece.options, takes, own=True, checks=checks)


def is_separate(piece: Piece) -> bool:
    """Return whether an engine samples in processes of its own, from a copy of the weights."""
    return piece.name != BUILTIN_ENGINE or "processes" in piece.options


def goes_across_updates(piece: Piece) -> bool:
    """Return whether an answer is continued with newer weights (`outdo.rollouts.across_updates`)."""
    return piece.options.get(ACROSS_UPDATES) is True


def environment_mistakes(piece: Piece) -> list[str]:
    """Return what is wrong with the environment of an engine on this machine; empty for one that needs none.

    It runs the interpreter that `engine.python` names, to find its vllm.
    """
    if piece.options.get("place") == RAY and piece.name == BUILTIN_ENGINE and (mistake := _missing_ray("engine")):
        return [mistake]
    folder = piece.options.get("folder")
    if (
        piece.name in ENGINES
        and isinstance(folder, str)
        and not os.access(Path(folder).expanduser(), os.W_OK | os.X_OK)
    ):
        return [f"engine.folder: {folder} is no folder of this machine that can be written to"]
    python = piece.options.get("python")
    if piece.name != VLLM or not isinstance(python, str):
        return []
    try:
        package = _package(str(Path(python).expanduser()))
        signature = signature_of(f"{package / ENGINE_ARGUMENTS.partition(':')[0]}:EngineArgs")
    except UserError as error:
        return [f"engine.python: {mistake}" for mistake in error.problems]
    options = {name: value for name, value in piece.options.items() if name not in (*OWN_OPTIONS, *SET_BY_OUTDO)}
    takes = Signature(spec=VLLM, options=(*OWN_OPTIONS, *signature.options))  # vLLM itself checks the values
    return list(option_mistakes("engine", VLLM, options, takes))


def reward_place_mistakes(recipe: Recipe) -> list[str]:
    """Return what keeps this machine from placing the rewards of a recipe by Ray; empty if it places none."""
    placed = [f"rewards.{reward.name}" for reward in recipe.rewards if reward.place == RAY]
    return [mistake for key in placed if (mistake := _missing_ray(key))]


def is_placed(recipe: Recipe) -> bool:
    """Return whether Ray places the engine or a reward of a recipe."""
    return recipe.engine.options.get("place") == RAY or any(reward.place == RAY for reward in recipe.rewards)


def _missing_ray(key: str) -> str | None:
    return None if find_spec("ray") else f'{key}.place: Ray is not installed: pip install "outdo[ray]"'


def _builtin_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    yield from option_mistakes("engine", BUILTIN_ENGINE, options, checks=OPTIONS_OF_PROCESSES)
    if "processes" not in options:
        given = [name for name in OPTIONS_OF_PROCESSES if name in options]
        yield from (f"engine.{name}: has an effect only with engine.processes" for name in given)
        return
    if "folder" in options and options.get("place") != RAY:
        yield f'engine.folder: has an effect only with place = "{RAY}": processes of this machine share its memory'
    if options.get("place") == RAY and "devices" in options:
        yield f'engine.devices: has no effect with place = "{RAY}": Ray gives a GPU to each process'
    elif _are_devices(devices := options.get("devices")) and len(devices) != options["processes"]:
        processes = options["processes"]
        yield f"engine.devices: expected a device for each of engine.processes = {processes}, found {len(devices)}"


def _vllm_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    given = [name for name in ("python", "url") if name in options]
    if len(given) != 1:
        yield (
            'engine: vllm needs either python = "path/to/its/python" or url = "http://host:8000"'
            + ("; set only one of them" if given else "; `make vllm` creates .venv-vllm/bin/python")
        )
    takes = Signature(spec=VLLM, accepts_any="url" not in options)  # `environment_mistakes` reads what vLLM takes
    yield from option_mistakes("engine", VLLM, options, takes, checks=OWN_OPTIONS, given=SET_BY_OUTDO)
    if "folder" in options and "url" not in options:
        yield "engine.folder: has an effect only with engine.url: a process of this machine shares its memory"


@cache
def _package(python: str) -> Path:
    """Return the folder of the vllm that an interpreter imports. Raises `UserError` if there is none."""
    if not Path(python).is_file():
        neighbours = [str(path) for path in Path(python).parent.glob("python*")]
        similar = did_you_mean(python, neighbours)
        raise UserError([f"{python}: no such file{similar}; `make vllm` creates an environment that has vLLM"])
    try:
        found = subprocess.run(
            [python, "-I", "-c", LOCATION], capture_output=True, text=True, timeout=ANSWER, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError([f"{python}: cannot be run as Python: {error}"]) from None
    origin = found.stdout.strip()
    if found.returncode != 0:
        raise UserError([f"{python}: cannot be run as Python: {json.dumps(found.stderr.strip()[-200:])}"])
    if not origin:
        raise UserError([f"{python}: this Python has no vllm; `make vllm` creates an environment that has"])
    return Path(origin).parent
