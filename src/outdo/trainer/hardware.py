"""The hardware of a run: device, precision, threads and workers."""

import os

import torch

from outdo.config.paths import with_absolute_paths
from outdo.config.recipe import Recipe
from outdo.models.device import choose_device
from outdo.models.inspect_folder import inspect_folder
from outdo.utils.malloc import disable_trim

SMALL = 50_000_000
"""Weights of a model for which a process of its own does more than a further thread, which only products can use."""


def choose_workers(recipe: Recipe, *, device: str, threads: int, parameters: int | None) -> tuple[int, str]:
    """How many processes share the work of one with `threads` threads, and why so many."""
    if device != "cpu":
        return 1, f"one process drives {device}"
    if recipe.workers is not None:
        return recipe.workers, "as the recipe asks"
    if recipe.critic is not None:
        return 1, "a critic is trained in one process, with all threads"
    if parameters is None or parameters > SMALL:
        return 1, "a large model's products are shared out among threads"
    return threads, "what is small is quicker with a process for each thread"


def resolve_hardware(recipe: Recipe, model: str) -> tuple[Recipe, list[str]]:
    """The recipe with device, threads and workers as they are here, and why; all of them decide the run's bits."""
    device, why = choose_device(recipe.device)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    threads = recipe.threads or torch.get_num_threads()
    size = inspect_folder(model).parameters
    workers, because = choose_workers(recipe, device=device.type, threads=threads, parameters=size)
    each = max(1, threads // workers)
    torch.set_num_threads(each)
    disable_trim()
    here = {"device": device.type, "threads": threads, "workers": workers}
    notes = [f"device: {device.type} ({why})", f"workers: {workers}, threads of each: {each} ({because})"]
    return with_absolute_paths(recipe).model_copy(update=here), notes
