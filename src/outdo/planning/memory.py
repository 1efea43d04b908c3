"""Bytes on each device, by purpose: the formulas of `outdo check`, divided by the devices that share a part."""

from collections.abc import Mapping

from outdo.config.fields import Shard
from outdo.config.recipe import Recipe
from outdo.planning.hardware import Card
from outdo.planning.shapes import BFLOAT16, Shape
from outdo.planning.workload import Workload
from outdo.trainer import cost

USABLE = 0.92
"""Share of a device's memory that a run can use: the rest is the driver's, and lost in pieces."""

ENGINE_SHARE = 0.85
"""Share of a device's memory that an engine uses for weights and cache."""


ACTIVATIONS_PER_COPY = 10
"""Numbers kept for each expert that a token visits, in units of the hidden size: its input, products and gradients."""


def trainer_memory(
    shape: Shape, work: Workload, *, shards: int, kept: Mapping[str, int], sequence: int = 1
) -> dict[str, int]:
    """Return the bytes of a trainer that shares `kept` (what stays during the run) with other `shards`.

    A sharded layer is gathered whole, in bf16, one while another is computed. Activations are those of `cost`: 30
    numbers of the hidden size for each token and layer, or one and those of one layer with checkpointing.
    """
    number = cost.FLOAT32 if work.precise else BFLOAT16
    copies = shape.experts_per_token if shape.experts > 1 else 0
    layer = cost.ACTIVATIONS_PER_LAYER + ACTIVATIONS_PER_COPY * copies
    each = shape.layers + layer if work.checkpointing else shape.layers * layer
    tokens = work.micro_batch_tokens
    gathered = 2 * BFLOAT16 * shape.parameters / shape.layers if shards > 1 else 0
    logits = min(256 * 2**20, number * tokens * shape.vocab) * cost.LOGIT_BUFFERS
    parts = {name: round(size / shards) for name, size in kept.items()}
    parts["layers gathered"] = round(gathered)
    parts["activations while training"] = round(number * each * tokens * shape.hidden)
    parts["a chunk of logits"] = round(logits)
    return {name: size for name, size in parts.items() if size}


def kept_by(
    shape: Shape, recipe: Recipe, *, reference: bool, critic: bool, adapter: float, frozen: int = BFLOAT16
) -> dict[str, int]:
    """Return the bytes that stay during the run on one device that shares them with none.

    `frozen` is the bytes of a weight that an adapter freezes.
    """
    count = round(shape.parameters)
    size = None
    if adapter:
        size = cost.AdapterSize(trained=round(adapter * count), base=frozen * count)
    alone = recipe.cluster.model_copy(update={"replicas": 1, "shard": Shard(on=False)})
    on_a_device = recipe.model_copy(update={"device": "cuda", "cluster": alone})
    return cost.kept(count, on_a_device, reference=reference, critic=critic, hidden=shape.hidden, adapter=size)


def engine_weights(shape: Shape, width: int, weight_bytes: float = BFLOAT16) -> int:
    """Return the bytes of an engine's weights on each of its devices."""
    return round(weight_bytes * shape.parameters / width)


def cache_bytes(shape: Shape, width: int) -> float:
    """Return the bytes of one token's keys and values on each of `width` devices, which share them by heads."""
    return shape.cache_bytes / min(width, shape.kv_heads)


def slots(shape: Shape, card: Card, work: Workload, width: int, taken: int = 0, weight_bytes: float = BFLOAT16) -> int:
    """Return how many answers an engine on `width` devices runs at a time, with `taken` bytes of a device in use.

    An answer takes its mean length over its run: half of itself, and its prompt.
    """
    free = ENGINE_SHARE * card.memory - engine_weights(shape, width, weight_bytes) - taken
    mean = work.prompt_tokens + work.lengths.mean / 2
    return max(0, int(free / (cache_bytes(shape, width) * mean)))


def fits_one_answer(
    shape: Shape, card: Card, work: Workload, width: int, taken: int = 0, weight_bytes: float = BFLOAT16
) -> bool:
    """Return whether an engine has room for the longest answer."""
    free = ENGINE_SHARE * card.memory - engine_weights(shape, width, weight_bytes) - taken
    return free >= cache_bytes(shape, width) * work.longest
