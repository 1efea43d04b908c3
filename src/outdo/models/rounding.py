"""Tell rounding from mistakes: how far float32 moves a model's log-probabilities, and a computation in float64.

Two right ways to compute a model differ by rounding, and a wrong one by more. How much rounding there is depends on the
model: some 1e-6 nats in a small one, 1e-3 where hidden states are 1e5 and log-probabilities reach -80. No fixed bound
separates the two. Here are two that do:

- In float64 right ways are 1e-12 nats apart, whatever the model is, so that the rounding of float32 is a wide bound.
- Where float64 is not available, a multiple of the model's own rounding is the bound in float32.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

LAST_BIT = torch.finfo(torch.float32).eps
"""The relative distance of neighbouring numbers in float32."""

TIMES_ROUNDING = 10
"""How many times the `rounding` of a model two right computations in float32 may differ. On average over a distribution
they differed by 0.05 to 0.95 times of it, and the log-probability of any token by 5 times at most (decision 0038)."""

IN_PLACE = frozenset({"__setitem__", *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "and", "or"))})


def probe_tokens(vocabulary: int) -> list[int]:
    """Return 64 tokens on which two ways to compute a model are compared."""
    return [(7 * index * index + 3 * index + 1) % vocabulary for index in range(64)]


def tolerance(smallest: float, rounding: float) -> float:
    """Return by how many nats two right computations in float32 may differ, of a model with this `rounding`.

    `smallest` is for models that round little: it was measured on small ones.
    """
    return max(smallest, TIMES_ROUNDING * rounding)


def distance(expected: Tensor, actual: Tensor) -> float:
    """Return Σ_v p_v |log p_v - log q_v| of the position where it is greatest: log p and log q [N, V] -> nats.

    It is how far the log-probability of a sampled token is apart on average. Tokens that are never sampled count
    little: their log-probabilities reach -80, and are rounded accordingly.
    """
    apart = torch.where(actual == expected, 0.0, (actual - expected).abs())  # both may be -∞
    return float((expected.exp() * apart).sum(-1).max())


@torch.no_grad()
def rounding(model: nn.Module, logprobs: Callable[[], Tensor], expected: Tensor) -> float:
    """Return by how much rounding in float32 moves the log-probabilities [N, V] that `logprobs` computes, a `distance`.

    `expected` is what it computes of the model as it is.
    In 19 architectures that was 0.5 to 4.4 times the distance of float32 from float64 (decision 0038).
    """
    with last_bits_changed(model):
        return distance(expected, logprobs())


@contextmanager
def last_bits_changed(model: nn.Module) -> Iterator[None]:
    """Change the output of every layer of a model in its last bit of float32, up or down at random."""
    source = torch.Generator().manual_seed(0)

    def change(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or output.dtype != torch.float32:
            return output
        signs = torch.randint(0, 2, output.shape, generator=source).mul_(2).sub_(1)
        return output * (1 + LAST_BIT * signs.to(output))

    with ExitStack() as hooks:
        for module in model.modules():
            if not any(module.children()):
                hooks.enter_context(module.register_forward_hook(change))
        yield


@torch.no_grad()
def in_float64(compute: Callable[[], Tensor]) -> Tensor | None:
    """Return what `compute` returns if all that it does in float32 is done in float64; None where this is impossible.

    The weights stay as they are: each operation converts what it reads, so that the largest weight alone exists twice.
    Impossible are operations that are not made for float64, a device without it, and too little memory.
    """
    try:
        with _Float64():
            result = compute()
    except Exception:  # torch raises what it likes; the comparison is made in float32 then
        return None
    return result if result.dtype == torch.float64 else None


class _Float64(TorchFunctionMode):
    """Converts each tensor in float32 that an operation of torch reads, and each request for float32, to float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "__get__":  # an attribute, such as `x.dtype`
            return func(*args, **kwargs)
        if func is embedding:  # whose result is smaller than its weight
            return func(*args, **kwargs).double()
        if func is Tensor.float:
            return args[0].double()
        in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        written, read = (args[:1], args[1:]) if in_place else ((), args)
        wide = {key: value if key == "out" else _wide(value) for key, value in kwargs.items()}
        return func(*written, *map(_wide, read), **wide)


def _wide(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    if isinstance(value, Tensor):
        return value.double() if value.dtype == torch.float32 else value
    return type(value)(map(_wide, value)) if type(value) in (list, tuple) else value
