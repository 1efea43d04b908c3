"""Frozen weights in few bytes: in bfloat16, or in 4 bits by bitsandbytes.

The precision of the products does not depend on it. A weight in bfloat16 is exactly a float32, and is converted for
each product (`outdo.models.onednn.linear`; on an accelerator by autocast): a model that is stored in bfloat16 computes
the same bits with its weights in either. Norms and biases stay float32.
"""

from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from outdo.models.onednn import NarrowLinear
from outdo.utils.errors import ModelError

Weights = Literal["float32", "bfloat16", "nf4"]
NARROW = (nn.Linear, nn.Embedding)
"""Layers whose weights are stored in bfloat16."""


def loading_options(weights: Weights) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a model with such weights.

    Raises `ModelError` if they need bitsandbytes, and it is not installed.
    """
    if weights == "float32":
        return {"dtype": torch.float32}
    if weights == "bfloat16":
        return {"dtype": torch.bfloat16}
    if find_spec("bitsandbytes") is None:
        raise ModelError(f'weights in {weights} need bitsandbytes: pip install "outdo[8bit]"')
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    return {"dtype": torch.bfloat16, "quantization_config": quantised}


def prepare(model: PreTrainedModel) -> None:
    """Make a model that was loaded with `loading_options` compute in float32; freeze its weights."""
    model.requires_grad_(False)
    for module in model.modules():
        if type(module) not in NARROW and not _is_quantised(module):
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.float()
        if type(module) is nn.Linear:
            module.__class__ = NarrowLinear
            if module.bias is not None:
                module.bias.data = module.bias.data.float()
        if type(module) is nn.Embedding and module.weight.dtype == torch.bfloat16:
            module.register_forward_hook(_to_float32)
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # Otherwise the first call without gradients repacks the weight of a Linear4bit for a product that has no
            # backward pass, and every later gradient ends there.
            module.support_avx512bf16_for_cpu = False  # pyright: ignore[reportArgumentType]


def _is_quantised(module: nn.Module) -> bool:
    return type(module).__module__.startswith("bitsandbytes")


def _to_float32(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.float()
