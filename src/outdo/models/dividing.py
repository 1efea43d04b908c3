"""Make models that are divided among replicas before their weights are read."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from outdo.models.scorer import Division


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move the buffers of a model, which are not divided, to a device."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def dividing(auto: Any, config: PretrainedConfig, division: Division) -> Any:
    """Return the class of models that `auto` loads, with models that are divided when they are made.

    transformers makes a model without weights, and reads of a weight that is divided only this process's part.
    """
    with torch.device("meta"):
        kind = type(auto.from_config(copy.deepcopy(config)))

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(self, *arguments, **options)
        self.tie_weights()
        division.divide(self)

    return type(kind.__name__, (kind,), {"__init__": make})
