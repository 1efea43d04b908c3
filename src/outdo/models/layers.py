"""What the layers of a model are, by the classes that `transformers` has for them."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers, as `transformers` marks them for gradient checkpointing."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def is_mixture(model: nn.Module) -> bool:
    """Return whether a model has experts, as `transformers` names them."""
    return any("Experts" in type(module).__name__ or name.endswith("experts") for name, module in model.named_modules())
