"""A CUDA device that is not there: tensors that report to be on it, and compute on the processor.

Every operation is checked as CUDA would: tensors of two devices do not mix, except where torch allows it. Every copy
to the host, and every operation that waits for one, is counted by its name.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

CUDA, HIDDEN = torch.device("cuda", 0), torch.device("meta")  # `HIDDEN` is what torch itself sees
CPU = torch.device("cpu")
OPS = torch.ops.aten
WAIT = {
    OPS._local_scalar_dense.default: "item",
    OPS.nonzero.default: "nonzero",
    OPS.masked_select.default: "masked_select",
}
"""Operators whose result, or its shape, the host needs."""
MAY_MIX = {OPS.copy_.default, OPS.index.Tensor, OPS.index_put_.default, OPS.index_put.default, OPS._to_copy.default}
"""Operators that read a tensor of the host themselves: a copy, and indices."""


class OnCuda(Tensor):
    """A tensor that reports to be on a GPU; `numbers` holds its numbers."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, real: Tensor, requires_grad: bool = False) -> "OnCuda":
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=HIDDEN,
            requires_grad=requires_grad,
        )
        made.numbers = real
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that is not there."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether it is on a GPU."""
        return True

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnCuda({self.numbers})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, Counter())


class Dispatch(TorchDispatchMode):
    """Runs every operator on the numbers, and counts what waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self.waits)


class Functions(TorchFunctionMode):
    """Lets functions of torch create tensors on the device that is not there."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_cuda(kwargs.get("device")):
            del kwargs["device"]
            return OnCuda(func(*args, **kwargs))
        if func is Tensor.tolist and isinstance(args[0], OnCuda):
            self.waits["tolist"] += 1
            return args[0].numbers.tolist()
        args, kwargs = tree_map(lambda each: HIDDEN if _is_cuda(each) else each, (args, kwargs))
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (isinstance(value, str) and value == "cuda")


def _run(func: Any, args: Any, kwargs: dict[str, Any], waits: Counter[str]) -> Any:
    flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    on_cuda = [each for each in flat if isinstance(each, OnCuda)]
    others = [each for each in flat if not isinstance(each, OnCuda) and each.dim() > 0]
    if on_cuda and others and func not in MAY_MIX:
        raise RuntimeError(f"{func}: tensors on two devices, cuda:0 and cpu")
    target = kwargs.get("device")
    if on_cuda:
        _count(func, args, target, on_cuda, waits)
    wrappers = {id(each.numbers): each for each in on_cuda}
    real_args, real_kwargs = tree_map(lambda each: each.numbers if isinstance(each, OnCuda) else each, (args, kwargs))
    if target is not None:
        real_kwargs["device"] = CPU
    with _disable_current_modes():
        result = func(*real_args, **real_kwargs)
    stays = target == HIDDEN if target is not None else bool(on_cuda)

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not stays:
            return value
        return wrappers.get(id(value)) if id(value) in wrappers else OnCuda(value)

    return tree_map(wrap, result)


def _count(func: Any, args: Any, target: Any, on_cuda: list[OnCuda], waits: Counter[str]) -> None:
    if func in WAIT:
        waits[WAIT[func]] += 1
    elif (func is OPS._to_copy.default and target == CPU) or (
        func is OPS.copy_.default and not isinstance(args[0], OnCuda)
    ):
        waits["to the host"] += 1
    elif func in (OPS.index.Tensor, OPS.index_put_.default, OPS.index_put.default):
        waits["boolean index"] += any(each is not None and each.dtype == torch.bool for each in args[1])


@contextmanager
def pretended_cuda() -> Iterator[Counter[str]]:
    """Let torch create tensors on a GPU that is not there; yield the counts of what waits for it."""
    mode = Dispatch()
    with Functions(mode.waits), mode:
        yield mode.waits


def move(module: nn.Module) -> None:
    """Move the weights of a module to the device that is not there."""
    moved: dict[int, nn.Parameter] = {}
    for each in module.modules():
        for name, weight in list(each._parameters.items()):
            if weight is not None:
                if id(weight) not in moved:
                    moved[id(weight)] = nn.Parameter(OnCuda(weight.detach().clone()), weight.requires_grad)
                each._parameters[name] = moved[id(weight)]
        for name, buffer in list(each._buffers.items()):
            if buffer is not None:
                each._buffers[name] = OnCuda(buffer.clone())
