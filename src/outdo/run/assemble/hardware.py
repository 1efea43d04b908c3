"""Resolve the hardware of a run: device, precision, determinism and threads.

The rules for a device are in `outdo.models.device`: which one is used, in which precision its products are computed,
and what makes CUDA deterministic. Here they are applied to a recipe.
"""

import os
from typing import Any

import torch

from outdo.config.fields import GradientProducts
from outdo.config.recipe import Recipe
from outdo.models.base_weights import Weights, choose_weights
from outdo.models.device import choose_device, make_deterministic, resolve_precision
from outdo.models.inspect_folder import ModelFacts
from outdo.models.onednn import ONEDNN, Gradients
from outdo.utils.extras import fast
from outdo.utils.machine import main_memory
from outdo.utils.malloc import disable_trim
from outdo.utils.world import ALONE, World

BUSY = 0.1
"""The share of its time without a processor from which a run says that it is not alone."""


def _why_threads(recipe: Recipe, local: int) -> str:
    """Return where the number of threads comes from; `local` replicas run on this machine."""
    if recipe.threads:
        return "set in the recipe"
    return "as many as torch takes" if local == 1 else f"as many as torch takes, divided among {local} replicas"


def resolve_hardware(recipe: Recipe, facts: ModelFacts, world: World = ALONE) -> tuple[Recipe, list[str]]:
    """Return the recipe with device and threads as they are on this machine, and a note on each choice.

    All of them decide the bits of the result. Also sets the number of torch's threads in this process. All processes of
    a `world` have to call it: what is measured is measured by the first one.
    """
    device, why = choose_device(recipe.device)
    reason = why if recipe.device == "auto" else "set in the recipe"  # also in that of a run that is resumed
    make_deterministic(device)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if recipe.cluster.world_size > 1 else 1  # on this machine
    threads = recipe.threads or max(1, torch.get_num_threads() // local)
    torch.set_num_threads(threads)
    disable_trim()
    precision = resolve_precision(recipe.precision, device)
    weights = resolve_weights(recipe, facts)
    products, product_notes = recipe.gradient_products, list[str]()
    if device.type == "cpu" and precision == "float32":
        products, product_notes = world.from_first(lambda: choose_products(recipe, facts))
    notes = [
        f"device: {device.type} ({reason}), precision: {precision}",
        f"threads: {threads} ({_why_threads(recipe, local)})",
        *product_notes,
    ]
    chosen: dict[str, Any] = {"device": device.type, "threads": threads, "weights": weights}
    chosen["gradient_products"] = products
    return recipe.model_copy(update=chosen), notes


def resolve_weights(recipe: Recipe, facts: ModelFacts) -> Weights:
    """Return how the weights of the model are stored: in float32, unless an adapter freezes them.

    Weights that are bfloat16 in the files of the model stay so. The products are the same.
    """
    frozen = recipe.train.adapter is not None or facts.adapter is not None
    return choose_weights(recipe.weights, facts, frozen=frozen and not recipe.compile)


def device_memory(name: str) -> int:
    """Return the bytes of memory that a device has in all; for a CPU, those of the machine or of its container.

    Raises `UserError` if `name` is no device of this machine.
    """
    device, _ = choose_device(name)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return main_memory()


def choose_products(recipe: Recipe, facts: ModelFacts) -> tuple[GradientProducts | None, list[str]]:
    """Return the libraries that compute the products of the backward pass, and a note on them.

    None, without a note, where only oneDNN or torch's own choice is left. The recipe of a run has what was measured, so
    that the run has the same bits when it is made again, whatever a new measurement would say.
    """
    if recipe.gradient_products is not None:
        return recipe.gradient_products, [f"gradient products: {_named(recipe.gradient_products)} (set in the recipe)"]
    fastest_gradients = fast("outdo.models.fast.fastest_products:fastest_gradients")
    measured = None if fastest_gradients is None else fastest_gradients(facts.layer_matrices)
    if measured is None:
        return None, []
    products = GradientProducts(**measured.gradients._asdict())
    speeds = f"MKL is {measured.input:.2f} and {measured.weight:.2f} times as fast as oneDNN"
    where = measured.file or "not kept, because the user's cache cannot be written"
    return products, [f"gradient products: {_named(products)} ({speeds} here: {where})"]


def busy_notes(share: float | None) -> list[str]:
    """Return a line if the threads of this process waited for a processor for a large share of their time so far."""
    if share is None or share < BUSY:
        return []
    return [
        f"other programs compute here: while this run loaded, its threads had no processor for {share:.0%} of their "
        "time; it takes longer than on a machine of its own, with the same result"
    ]


def gradients_of(recipe: Recipe) -> Gradients:
    """Return the libraries of a resolved recipe."""
    products = recipe.gradient_products
    return ONEDNN if products is None else Gradients(products.input, products.weight)


def _named(products: GradientProducts) -> str:
    names = {"onednn": "oneDNN", "mkl": "MKL"}
    return f"of inputs by {names[products.input]}, of weights by {names[products.weight]}"
