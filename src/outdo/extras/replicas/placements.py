"""Along which dimension each weight of a divided model is cut, and which weights no layer gathers.

transformers reads this process's part of each tensor of a file, and makes a weight of these parts. Where it joins or
splits tensors along their first dimension, parts that are cut along the same one would get the rows of others.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor import Shard
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter

from outdo.models.inspect_folder import IN_A_LAYER
from outdo.utils.errors import ModelError


def placements(model: PreTrainedModel, replicas: int) -> Callable[[nn.Parameter], Shard | None]:
    """Return the function of FSDP that names the dimension along which a weight is cut; None: the first one.

    Raises `ModelError` if a weight cannot be cut along its first dimension, nor along another one in equal parts.
    """
    dimensions: dict[nn.Parameter, Shard] = {}
    for name, weight in _made_of_rows(model):
        even = [dim for dim in range(1, weight.dim()) if weight.shape[dim] % replicas == 0]
        if not even:
            raise ModelError(
                f"{name} {list(weight.shape)} is made of several stored tensors, and none of its other dimensions can "
                f"be divided among {replicas} replicas (cluster.shard)"
            )
        dimensions[weight] = Shard(even[0])
    return dimensions.get


def shared_by_layers(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights that several layers have in common, as in Zamba. A layer cannot gather them for the others."""
    layers: dict[nn.Parameter, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if match := IN_A_LAYER.search(name):
            layers.setdefault(weight, set()).add(name[: match.end()])
    return {weight for weight, names in layers.items() if len(names) > 1}


def _made_of_rows(model: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the weights that transformers makes of rows of stored tensors."""
    converters: list[Any] = [
        transform
        for transform in get_model_conversion_mapping(model)
        if isinstance(transform, WeightConverter) and any(map(_moves_rows, transform.operations))
    ]
    patterns = [re.compile(pattern) for converter in converters for pattern in converter.target_patterns]
    for name, weight in model.named_parameters():
        if any(pattern.search(name) for pattern in patterns):
            yield name, weight


def _moves_rows(operation: Any) -> bool:
    """Return whether an operation on stored tensors moves rows. That which stacks experts is known to transformers."""
    return type(operation).__name__ != "MergeModulelist" and getattr(operation, "dim", 0) == 0
