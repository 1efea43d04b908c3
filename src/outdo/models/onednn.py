"""Matrix products of float32 on an x86 processor, by oneDNN.

torch brings two libraries that compute them, and asks MKL, which leaves half of an AMD core unused. oneDNN does not. It
also gives a row the same bits whatever stands beside it, if anything does. Where it is missing, or switched off by
`torch.backends.mkldnn.enabled = False`, everything here is what torch does anyway.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear as torchs_linear

from outdo.models.limits import PACKED_BYTES

X86 = platform.machine().lower() in ("x86_64", "amd64")


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, [m, k] and [k, n] -> [m, n]; not differentiable."""
    return _by_onednn(left, right.t(), None) if _use_onednn(left, right) else left @ right


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as `torch.nn.functional.linear`: [..., k], [n, k] and [n] -> [..., n]; differentiable, once."""
    if not _use_onednn(x, weight):
        return torchs_linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _by_onednn(x, weight, bias)


def pad_to_bucket(rows: int) -> int:
    """So many rows or some more, from 512 on a sixteenth at most: a number that comes again.

    oneDNN takes a millisecond to prepare a product for each number of rows that it has not seen.
    """
    step = max(32, 2 ** (rows.bit_length() - 5))
    return -(-rows // step) * step


@contextmanager
def patched_linears(model: nn.Module, *, packed: bool = False) -> Iterator[None]:
    """The linear layers of a model compute by `linear`, for the length of a `with` block.

    `packed` weights are copied into the order in which oneDNN reads them, which each product would do otherwise: for
    many products with few rows, between which no weight changes. Up to `PACKED_BYTES` bytes are copied, or none.
    """
    layers = [each for each in model.modules() if type(each) is nn.Linear and "forward" not in vars(each)]
    packed = packed and sum(layer.weight.nbytes for layer in layers) <= PACKED_BYTES
    for layer in layers:
        by = partial(_by_layer, layer)
        if packed and _use_onednn(layer.weight):
            by = partial(_by_packed, layer, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach()))
        layer.forward = by  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _by_layer(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _by_packed(layer: nn.Linear, weight: Tensor, x: Tensor) -> Tensor:
    return _by_onednn(x, weight, layer.bias) if _use_onednn(x) else linear(x, layer.weight, layer.bias)


def _use_onednn(*factors: Tensor) -> bool:
    """Whether oneDNN is asked. By the rows it is not decided, or their bits would depend on how many there are."""
    return (
        X86
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and all(each.dtype == torch.float32 and each.device.type == "cpu" and each.numel() for each in factors)
        and not torch.is_autocast_enabled("cpu")
    )


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # What torch's own compiler calls: the one way to oneDNN that takes tensors as they are, transposed ones too.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b; ∂x = ∂y W, ∂W = ∂yᵀ x, ∂b = Σ ∂y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = by_y.flatten(0, -2)  # [N, n]
        return (
            _by_onednn(by_y, weight.t(), None) if for_x else None,
            _by_onednn(rows.t(), x.flatten(0, -2).t(), None) if for_weight else None,
            rows.sum(0) if for_bias else None,
        )
