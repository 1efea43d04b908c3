"""Matrix products of float32 on an x86 processor, by oneDNN.

torch includes two libraries that compute them, and calls MKL, which leaves half of a core with AVX-512 unused. oneDNN
does not. Its result for a row also has the same bits whatever the other rows are, and if there are none, so that it
computes all forward passes. Which library is faster at the transposed matrices of a backward pass depends on the
processor: `Gradients` names it. Where oneDNN is missing, or switched off by `torch.backends.mkldnn.enabled = False`,
the functions here do what torch does by itself.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear as torchs_linear

from outdo.models.limits import PACKED_BYTES

X86 = platform.machine().lower() in ("x86_64", "amd64")


Library = Literal["onednn", "mkl"]


class Gradients(NamedTuple):
    """The library that computes each product of a backward pass."""

    input: Library = "onednn"  # ∂x = ∂y W
    weight: Library = "onednn"  # ∂W = ∂yᵀ x


ONEDNN = Gradients()
_gradients = ContextVar("gradients", default=ONEDNN)


def current_gradients() -> Gradients:
    """Return the libraries of the `with` block of `gradients_by` that this thread is in; outside of any, oneDNN."""
    return _gradients.get()


@contextmanager
def gradients_by(libraries: Gradients) -> Iterator[None]:
    """Let these libraries compute the backward pass of what is computed during a `with` block."""
    before = _gradients.set(libraries)
    try:
        yield
    finally:
        _gradients.reset(before)


def product(left: Tensor, right: Tensor, library: Library = "onednn") -> Tensor:
    """Compute left @ right, [m, k] and [k, n] -> [m, n]; not differentiable."""
    by_onednn = library == "onednn" and _use_onednn(left, right)
    return _by_onednn(left, right.t(), None) if by_onednn else left @ right


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, as `torch.nn.functional.linear`: [..., k], [n, k] and [n] -> [..., n]; differentiable, once.

    A frozen weight in bfloat16 is converted for each product, and only the original is kept for the backward pass.
    """
    if not _use_onednn(x, weight):
        return torchs_linear(x, weight if torch.is_autocast_enabled(x.device.type) else weight.to(x.dtype), bias)
    if torch.is_grad_enabled():  # a model may change the result in place, which autograd forbids if it is a view
        return _Linear.apply(x, weight, bias, current_gradients()).view(*x.shape[:-1], len(weight))
    return _by_onednn(x, weight.to(x.dtype), bias)


def pad_to_bucket(rows: int) -> int:
    """Round a number of rows up to one of a few sizes, by a sixteenth at most from 512 on.

    oneDNN takes a millisecond to prepare a product for each number of rows that is new to it.
    """
    step = max(32, 2 ** (rows.bit_length() - 5))
    return -(-rows // step) * step


class NarrowLinear(nn.Linear):
    """A linear layer with a frozen weight in bfloat16, whose input and output are float32; see `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute x Wᵀ + b."""
        return linear(input, self.weight, self.bias)


LINEAR = (nn.Linear, NarrowLinear)
"""The layers that are nothing but a product."""


Replaced = dict[nn.Linear, dict[str, Callable[..., Any]]]
"""Linear layers, and what they compute with: `forward`, and `together` of the first layer of a group."""


@contextmanager
def patched_linears(
    model: nn.Module, *, packed: bool = False, readers: Iterable[Sequence[nn.Module]] = ()
) -> Iterator[None]:
    """Let the linear layers of a model compute by `linear` during a `with` block.

    `packed` copies the weights into the order in which oneDNN reads them, as each product would do otherwise: for many
    products with few rows, between which no weight changes. Up to `PACKED_BYTES` bytes are copied, or none. Layers that
    read the same input, each group of `readers`, are packed as one matrix, which `together` multiplies by.
    """
    linear_layers = (module for module in model.modules() if isinstance(module, nn.Linear))
    layers = [layer for layer in linear_layers if type(layer) in LINEAR and "forward" not in vars(layer)]
    packed = packed and sum(4 * layer.weight.numel() for layer in layers) <= PACKED_BYTES
    replaced: Replaced = {layer: {"forward": partial(_forward, layer)} for layer in layers}
    if packed:
        _pack_all(replaced, readers)
    for layer, functions in replaced.items():
        vars(layer).update(functions)
    try:
        yield
    finally:
        for layer, functions in replaced.items():
            for name in functions:
                delattr(layer, name)


def together(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """Compute several layers of the same x, as one product if `patched_linears` has packed them as one matrix."""
    joined = vars(layers[0]).get("together")
    return [layer(x) for layer in layers] if joined is None else joined(x)


def _pack_all(layers: Replaced, readers: Iterable[Sequence[nn.Module]]) -> None:
    """Replace what layers compute with by products with packed weights."""
    alone = {layer for layer in layers if _use_onednn(layer.weight)}
    for group in readers:
        known = [layer for layer in group if isinstance(layer, nn.Linear) and layer in alone]
        alike = len({layer.bias is None for layer in known}) == 1
        if alike and len(known) == len(group):
            layers[known[0]]["together"] = _joined(known)
            alone.difference_update(known)
    for layer in alone:
        layers[layer]["forward"] = partial(_packed_forward, layer, _pack([layer]))


def _joined(layers: Sequence[nn.Linear]) -> Callable[[Tensor], Sequence[Tensor]]:
    bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
    return partial(_joined_forward, layers, _pack(layers), bias)


def _pack(layers: Sequence[nn.Linear]) -> Tensor:
    weights = [layer.weight.detach().float() for layer in layers]
    return torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights) if len(weights) > 1 else weights[0])


def _joined_forward(layers: Sequence[nn.Linear], weight: Tensor, bias: Tensor | None, x: Tensor) -> Sequence[Tensor]:
    if not _use_onednn(x):
        return [_forward(layer, x) for layer in layers]
    return _by_onednn(x, weight, bias).split([layer.out_features for layer in layers], -1)


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _packed_forward(layer: nn.Linear, weight: Tensor, x: Tensor) -> Tensor:
    return _by_onednn(x, weight, layer.bias) if _use_onednn(x) else linear(x, layer.weight, layer.bias)


def available() -> bool:
    """Return whether this torch has oneDNN for this processor, and may use it."""
    return X86 and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def _use_onednn(x: Tensor, weight: Tensor | None = None) -> bool:
    """Return whether oneDNN computes. The number of rows does not decide: their bits would depend on it."""
    factors = [x] if weight is None else [x, weight]
    return (
        available()
        and all(factor.device.type == "cpu" and factor.numel() for factor in factors)
        and x.dtype == torch.float32
        and (weight is None or weight.dtype == torch.float32 or _is_narrow(weight))
        and not torch.is_autocast_enabled("cpu")
    )


def _is_narrow(weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and not weight.requires_grad


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # The operator that torch's own compiler calls: only it takes tensors as they are, transposed ones included.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b; ∂x = ∂y W, ∂W = ∂yᵀ x, ∂b = Σ ∂y: x [..., k] -> y [N, n], with N the product of the others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gradients: Gradients) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return _by_onednn(x.reshape(-1, x.shape[-1]), weight.to(x.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by: Gradients = ctx.gradients
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            product(grad_y, weight.to(x.dtype), by.input).view(x.shape) if needs_x else None,
            product(grad_y.t(), x.reshape(-1, x.shape[-1]), by.weight) if needs_weight else None,
            grad_y.sum(0) if needs_bias else None,
            None,
        )
