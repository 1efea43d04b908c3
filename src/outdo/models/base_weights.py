"""Frozen weights in few bytes: in bfloat16, in 8 bits by torchao, or in 4 bits by bitsandbytes.

The precision of the products does not depend on it. A weight in bfloat16 is exactly a float32, and is converted for
each product (`outdo.models.onednn.linear`; on an accelerator by autocast): a model that is stored in bfloat16 computes
the same bits with its weights in either. Norms and biases stay float32.
"""

from importlib.util import find_spec
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import BitsAndBytesConfig, PreTrainedModel, TorchAoConfig

from outdo.models.inspect_folder import ModelFacts
from outdo.models.onednn import NarrowLinear, current_gradients, linear, product
from outdo.utils.errors import ModelError

Weights = Literal["float32", "bfloat16", "int8", "nf4"]
NARROW = (nn.Linear, nn.Embedding)
"""Layers whose weights are stored in bfloat16."""
LIBRARIES = {"int8": ("torchao", "int8"), "nf4": ("bitsandbytes", "8bit")}
"""The library that quantises weights, and the extra of outdo that installs it."""


def choose_weights(weights: Weights | Literal["auto"], facts: ModelFacts, *, frozen: bool) -> Weights:
    """Return how the weights of a model are stored. Frozen ones that are bfloat16 in its files stay so by default."""
    if weights != "auto":
        return weights
    return "bfloat16" if frozen and facts.dtype == "bfloat16" else "float32"


def loading_options(weights: Weights) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a model with such weights.

    Raises `ModelError` if they need a library that is not installed.
    """
    if weights == "float32":
        return {"dtype": torch.float32}
    if weights == "bfloat16":
        return {"dtype": torch.bfloat16}
    library, extra = LIBRARIES[weights]
    if find_spec(library) is None:
        raise ModelError(f'weights in {weights} need {library}: pip install "outdo[{extra}]"')
    if weights == "int8":
        from torchao.quantization import Int8WeightOnlyConfig

        return {"dtype": torch.float32, "quantization_config": TorchAoConfig(Int8WeightOnlyConfig())}
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    return {"dtype": torch.bfloat16, "quantization_config": quantised}


def prepare(model: PreTrainedModel, *, whole: str = "") -> None:
    """Make a model that was loaded with `loading_options` compute in float32; freeze its weights.

    The layer with the name `whole` gets float32 weights.
    """
    model.requires_grad_(False)
    for name, module in model.named_modules():
        if is_quantised(weight := getattr(module, "weight", None)):
            if type(module) is nn.Linear:  # bitsandbytes has layers of its own
                module.__class__ = Int8Linear
        elif type(module) not in NARROW or name == whole:
            for key, parameter in module.named_parameters(recurse=False):
                setattr(module, key, nn.Parameter(parameter.detach().float(), requires_grad=False))
        else:
            cast("Tensor", weight).data = cast("Tensor", weight).data.bfloat16()
            if type(module) is nn.Embedding:
                module.register_forward_hook(_to_float32)
            else:
                module.__class__ = NarrowLinear  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias = nn.Parameter(module.bias.detach().float(), requires_grad=False)
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # Otherwise the first call without gradients repacks the weight of a Linear4bit for a product that has no
            # backward pass, and every later gradient ends there.
            module.support_avx512bf16_for_cpu = False  # pyright: ignore[reportArgumentType]


def is_quantised(weight: Any) -> bool:
    """Return whether a weight is stored in 8 or 4 bits."""
    return type(weight).__module__.startswith(("bitsandbytes", "torchao"))


def scales(weight: Any) -> Tensor:
    """Return the factors of a quantised weight; one of them is not finite if a number of the weight was not."""
    return weight.scale if hasattr(weight, "scale") else weight.quant_state.absmax


class Int8Linear(nn.Linear):
    """A linear layer with a frozen weight of torchao, whose input and output are float32.

    torchao itself computes with a float32 copy of the weight, which autograd keeps until the backward pass: four bytes
    for each weight of the model.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Compute x Wᵀ + b."""
        result: Tensor = _Int8Product.apply(input, self.weight)
        return result if self.bias is None else result + self.bias


class _Int8Product(torch.autograd.Function):
    """y = x Wᵀ, ∂x = ∂y W: [..., k] -> [..., n]. Each pass makes its own float32 copy of W [n, k]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
        ctx.weight, ctx.library = weight, current_gradients().input
        return linear(x, weight.dequantize())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, None]:
        weight = ctx.weight.dequantize().to(grad_y.dtype)
        grad_x = product(grad_y.reshape(-1, len(weight)), weight, ctx.library)
        return grad_x.view(*grad_y.shape[:-1], weight.shape[1]), None


def _to_float32(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.float()
