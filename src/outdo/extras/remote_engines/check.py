"""What a recipe may say about the built-in engine in processes of its own, and about an engine in user's code."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from outdo.config.engines import OF_COPIES, RAY, EngineCheck, folder_mistakes
from outdo.config.names import BUILTIN_ENGINE, QUANTISED
from outdo.config.recipe import Recipe
from outdo.utils.options import NATURAL, POSITIVE, TEXT, Check, option_mistakes

DEVICE = re.compile(r"cpu|mps|cuda:\d+")


def _are_devices(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(device, str) and DEVICE.fullmatch(device) for device in value)


OPTIONS: Mapping[str, Check] = {
    "processes": NATURAL,
    "place": (lambda value: value == RAY, f'"{RAY}", or no place for processes of this machine'),
    "folder": TEXT,
    "devices": (_are_devices, 'a list such as ["cuda:1", "cuda:2"], of "cpu", "mps" and "cuda:" with a number'),
    "timeout": POSITIVE,
    **OF_COPIES,
}
"""The options of the built-in engine, all of them for processes of its own."""


def options_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the options of the built-in engine."""
    yield from option_mistakes("engine", BUILTIN_ENGINE, options, checks=OPTIONS)
    if "processes" not in options:
        written = [name for name in OPTIONS if name in options]
        yield from (f"engine.{name}: has an effect only with engine.processes" for name in written)
        return
    if "folder" in options and options.get("place") != RAY:
        yield f'engine.folder: has an effect only with place = "{RAY}": processes of this machine share its memory'
    if options.get("place") == RAY and "devices" in options:
        yield f'engine.devices: has no effect with place = "{RAY}": Ray gives a GPU to each process'
    elif _are_devices(devices := options.get("devices")) and len(devices) != options["processes"]:
        processes = options["processes"]
        yield f"engine.devices: expected a device for each of engine.processes = {processes}, found {len(devices)}"


def recipe_mistakes(recipe: Recipe) -> Iterator[str]:
    """Yield the weights that processes cannot share."""
    if "processes" in recipe.engine.options and recipe.weights in QUANTISED:
        yield 'engine.processes: processes cannot share quantised weights; use weights = "bfloat16"'


CHECK = EngineCheck(options=options_mistakes, recipe=recipe_mistakes, machine=folder_mistakes)
