"""Bytes on each device, by purpose: the formulas of `outdo check`, divided by the devices that share a part."""

from collections.abc import Mapping

from outdo.config.fields import Shard
from outdo.config.recipe import Recipe
from outdo.extras.plan.hardware import Card
from outdo.extras.plan.shapes import BFLOAT16, Shape
from outdo.extras.plan.workload import Workload
from outdo.run.check import cost, step_memory

USABLE = 0.92
"""Share of a device's memory that a run can use: the rest is the driver's, and lost in pieces."""

ENGINE_SHARE = 0.85
"""Share of a device's memory that an engine uses for weights and cache."""


ACTIVATIONS_PER_COPY = 10
"""Numbers kept for each expert that a token visits, in units of the hidden size: its input, products and gradients."""


def trainer_memory(shape: Shape, work: Workload, *, model_states: Mapping[str, int], gathered: int) -> dict[str, int]:
    """Return the bytes of a trainer that keeps `model_states`, and computes with `gathered` bytes of layers.

    Activations are those of `cost`: 30 numbers of the hidden size for each token and layer, or one and those of one
    layer with checkpointing.
    """
    number = cost.FLOAT32 if work.precise else BFLOAT16
    copies = shape.experts_per_token if shape.experts > 1 else 0
    layer = step_memory.ACTIVATIONS_PER_LAYER + ACTIVATIONS_PER_COPY * copies
    values_of_token = shape.layers + layer if work.checkpointing else shape.layers * layer
    tokens = work.micro_batch_tokens
    logits = min(256 * 2**20, number * tokens * shape.vocab) * step_memory.LOGIT_BUFFERS
    parts = dict(model_states)
    parts["layers gathered while training"] = gathered
    parts["activations while training"] = round(number * values_of_token * tokens * shape.hidden)
    parts["a chunk of logits while training"] = round(logits)
    return {name: size for name, size in parts.items() if size}


def two_layers(shape: Shape) -> int:
    """Return the bytes of two layers in bf16, which FSDP2 of other libraries gathers while it computes."""
    return round(2 * BFLOAT16 * shape.parameters / shape.layers)


def layers_gathered(shape: Shape, work: Workload) -> int:
    """Return the bytes of layers and of what is outside of them that outdo gathers to train a divided model.

    They are float32, with as many gradients, or the frozen weights of an adapter, without.
    """
    in_layers = 1 - min(1.0, shape.outside / shape.parameters)
    size = (work.frozen_bytes if work.adapter else 2 * cost.FLOAT32) * shape.parameters
    return cost.bytes_of_layers(size, in_layers, cost.GATHERED_LAYERS / shape.layers)


def on_devices(recipe: Recipe, shards: int, *, offload: bool = False) -> Recipe:
    """Return a recipe that trains on accelerators which divide their models."""
    cluster = recipe.cluster.model_copy(update={"replicas": shards, "shard": Shard(on=shards > 1, offload=offload)})
    return recipe.model_copy(update={"device": "cuda", "cluster": cluster})


def model_states_of(
    shape: Shape,
    recipe: Recipe,
    *,
    reference: bool,
    critic: bool,
    adapter: float,
    frozen: float = BFLOAT16,
    shards: int = 1,
    offload: bool = False,
) -> dict[str, int]:
    """Return the bytes that stay during the run on one of the devices that share them: an adapter is whole on each.

    `frozen` is the bytes of a weight that an adapter freezes. With `offload` the parts are in main memory.
    """
    count = round(shape.parameters)
    size = None
    if adapter:
        size = cost.AdapterSize(trained=round(adapter * count), base=round(frozen * count))
    divided = on_devices(recipe, shards, offload=offload)
    return cost.model_states(count, divided, reference=reference, critic=critic, hidden=shape.hidden, adapter=size)


def engine_weights(shape: Shape, width: int, weight_bytes: float = BFLOAT16) -> int:
    """Return the bytes of an engine's weights on each of its devices."""
    return round(weight_bytes * shape.parameters / width)


def cache_bytes(shape: Shape, width: int) -> float:
    """Return the bytes of one token's keys and values on each of `width` devices, which share them by heads."""
    return shape.cache_bytes / min(width, shape.kv_heads)


def slots(shape: Shape, card: Card, work: Workload, width: int, taken: int = 0, held_bytes: float = BFLOAT16) -> int:
    """Return how many answers an engine on `width` devices runs at a time, with `taken` bytes of a device in use.

    It holds `held_bytes` of each weight beside them. An answer takes its mean length over its run: half of itself, and
    its prompt.
    """
    free = ENGINE_SHARE * card.memory - engine_weights(shape, width, held_bytes) - taken
    mean = work.prompt_tokens + work.lengths.mean / 2
    return max(0, int(free / (cache_bytes(shape, width) * mean)))


def fits_one_answer(
    shape: Shape, card: Card, work: Workload, width: int, taken: int = 0, held_bytes: float = BFLOAT16
) -> bool:
    """Return whether an engine has room for the longest answer."""
    free = ENGINE_SHARE * card.memory - engine_weights(shape, width, held_bytes) - taken
    return free >= cache_bytes(shape, width) * work.longest
