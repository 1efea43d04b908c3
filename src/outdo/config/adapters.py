"""The adapters that a recipe may name: the methods of PEFT and their options, read from its source.

PEFT takes seconds to import, and a recipe is checked before that.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from outdo.config.names import QUANTISED
from outdo.config.recipe import Piece, Recipe
from outdo.config.unknown_settings import listed_hint
from outdo.models.limits import CHANGING_BASE, DIVISIBLE_LORA, DIVISIBLE_WEIGHTS
from outdo.utils.errors import UserError
from outdo.utils.imports import Signature, signature_of, source_file
from outdo.utils.options import no_such_name, option_mistakes

SHORT_NAMES = {"rank": "r", "alpha": "lora_alpha", "targets": "target_modules", "rslora": "use_rslora"}
"""Short names of options, as papers use them, and the names of PEFT."""

_CLASS = re.compile(r"^class (\w+Config)\((\w+)\):", re.MULTILINE)


@cache
def adapter_methods() -> Mapping[str, str]:
    """Return the methods of PEFT that train layers of a model: their names, and where their configuration class is.

    Empty if PEFT is not installed.
    """
    try:
        tuners = source_file("peft.tuners").parent
    except UserError:
        return {}
    methods = {}
    for path in sorted(tuners.glob("*/config.py")):
        name = path.parent.name
        for config, base in _CLASS.findall(path.read_text(encoding="utf-8")):
            if config.lower() == f"{name.replace('_', '')}config" and not base.startswith("Prompt"):
                methods[name] = f"peft.tuners.{name}.config:{config}"
    return methods


def with_names_of_peft(piece: Piece) -> Piece:
    """Return an adapter with PEFT's names of its options, where the recipe has a short name."""
    short = _short_names(piece.name)
    return piece.model_copy(update={"options": {short.get(name, name): value for name, value in piece.options.items()}})


def check_adapter(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the adapter of a recipe, as far as the source of PEFT tells."""
    if recipe.train.adapter is not None:
        yield from adapter_mistakes("train.adapter", recipe.train.adapter)


def adapter_mistakes(key: str, piece: Piece) -> Iterator[str]:
    """Yield what is wrong with an adapter, as far as the source of PEFT tells."""
    methods = adapter_methods()
    if not methods:
        yield f'{key}: needs peft: pip install "outdo[adapters]"'
    elif piece.name not in methods:
        yield no_such_name(key, piece.name, list(methods))
    else:
        yield from option_mistakes(key, piece.name, piece.options, _signature(piece.name), hint=listed_hint)
        for name, value in piece.options.items():
            yield from _without_sense(f"{key}.{name}", name, value)
        for name, long in _short_names(piece.name).items():
            if {name, long} <= piece.options.keys():
                yield f"{key}.{name}: means the same as {long}; set only one of them"


def mixed_reference(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for a reference that would be a mixture of two adapters."""
    sync = recipe.reference.sync
    if recipe.train.adapter is not None and sync is not None and sync.mix < 1:
        yield (
            f"reference.sync.mix = {sync.mix:g}: adapters cannot be mixed weight by weight, because a mixture of "
            "factors is not the mixture of their products; leave it out"
        )


def weights_in_few_bytes(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for a setting that does not work with frozen weights in fewer bytes than float32."""
    if recipe.weights in ("bfloat16", *QUANTISED) and recipe.compile:
        yield f'compile = true: compiled layers cannot convert frozen weights; not with weights = "{recipe.weights}"'
    start = "" if recipe.train.adapter is None else str(recipe.train.adapter.options.get("init_lora_weights", ""))
    if recipe.weights in QUANTISED and start.startswith(CHANGING_BASE):
        yield (
            f'train.adapter.init_lora_weights = "{start}": changes the base, and weights = "{recipe.weights}" cannot '
            'be changed; use weights = "bfloat16"'
        )


def unmerged_bias(recipe: Recipe) -> Iterator[str]:
    """Yield a note for an adapter with biases of its own, which no layer without a bias can take up."""
    if recipe.train.adapter is not None and recipe.train.adapter.options.get("lora_bias"):
        yield (
            "train.adapter.lora_bias = true: `outdo export --merge` works only if all adapted layers of the model have "
            "a bias"
        )


def divided_adapter(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each setting of an adapter that does not work on a model divided among replicas."""
    if not recipe.cluster.shard:
        return
    if recipe.weights not in ("auto", *DIVISIBLE_WEIGHTS):
        can = " and ".join(DIVISIBLE_WEIGHTS)
        yield f'weights = "{recipe.weights}": cannot be divided among replicas (cluster.shard = true); {can} can'
    adapter = recipe.train.adapter
    if adapter is None or adapter.name not in adapter_methods():
        return
    if recipe.cluster.shard.offload:
        yield "cluster.shard.offload = true: an adapter (train.adapter) is not divided; leave it out"
    if adapter.name != "lora":
        yield f'train.adapter = "{adapter.name}": does not work on a divided model (cluster.shard = true); lora does'
        return
    options, defaults = with_names_of_peft(adapter).options, _signature("lora").defaults
    for name in sorted(options.keys() - DIVISIBLE_LORA):
        if options[name] != defaults.get(name):
            yield f"train.adapter.{name}: does not work on a divided model (cluster.shard = true); leave it out"


def _without_sense(key: str, name: str, value: Any) -> Iterator[str]:
    """Yield a sentence for an option that PEFT accepts, and that a run cannot use."""
    if "dropout" in name and isinstance(value, int | float) and value:
        yield f"{key} = {value}: would have no effect, because outdo trains without dropout; leave it out"
    if name == "init_lora_weights" and str(value).startswith("pissa_niter"):
        yield f'{key} = "{value}": changes the base at random, so that a saved adapter would not fit it; use "pissa"'


@cache
def _signature(method: str) -> Signature:
    """Return the options of a method, short names included, without those that PEFT sets itself in every method."""
    signature = signature_of(adapter_methods()[method]).without(signature_of("peft.config:PeftConfig").parameters)
    short = _short_names(method)
    defaults = {name: signature.defaults[long] for name, long in short.items() if long in signature.defaults}
    return replace(signature, options=(*short, *signature.options), defaults={**signature.defaults, **defaults})


def _short_names(method: str) -> Mapping[str, str]:
    """Return the short names that a method has no options of its own for, and the names of PEFT."""
    parameters = signature_of(adapter_methods()[method]).parameters
    return {name: long for name, long in SHORT_NAMES.items() if long in parameters and name not in parameters}
