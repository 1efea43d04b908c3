"""A CUDA device that is not there: tensors that report to be on it, and compute on the processor.

Every operation is checked as CUDA would: tensors of two devices do not mix, except where torch allows it. Every copy
to the host, and every operation that waits for one, is counted by its name.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from outdo.rollouts.fast import continuous_batching
from outdo.rollouts.fast.device_steps import DeviceSteps

CUDA, HIDDEN = torch.device("cuda", 0), torch.device("meta")  # `HIDDEN` is what torch itself sees
CPU = torch.device("cpu")
OPS = torch.ops.aten
SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
WAIT = {
    OPS._local_scalar_dense.default: "item",
    OPS.nonzero.default: "nonzero",
    OPS.masked_select.default: "masked_select",
}
"""Operators whose result, or its shape, the host needs."""
PRODUCTS = {OPS.mm.default, OPS.addmm.default, OPS.bmm.default, OPS.baddbmm.default}
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

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Whether it has no numbers."""
        return False

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory of its numbers, which other tensors may share."""
        return self.numbers.untyped_storage()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnCuda({self.numbers})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, Counter())


class Dispatch(TorchDispatchMode):
    """Runs every operator on the numbers, and counts what waits for the device."""

    largest = 0
    """The most bytes of a product of a training pass; 0: any number."""
    exact = False
    """Whether products in float32 are computed in float64: so they are rounded otherwise than those of a processor."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _run(func, args, kwargs or {}, self.waits, exact=self.exact)
        if self.largest and func in PRODUCTS and torch.is_grad_enabled() and result.nbytes > self.largest:
            raise torch.OutOfMemoryError("a device that is not there is out of memory")
        return result


class Functions(TorchFunctionMode):
    """Lets functions of torch create tensors on the device that is not there."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and _is_cuda(kwargs.get("device")):
            del kwargs["device"]
            return OnCuda(func(*args, **kwargs))
        if func is Tensor.tolist and isinstance(args[0], OnCuda):
            self.waits["tolist"] += 1
            return args[0].numbers.tolist()
        if func == SET_DATA and isinstance(args[0], OnCuda):
            args[0].numbers = args[1].numbers
        if func is Tensor.__getitem__ and isinstance(args[1], list):  # which would be made a tensor without numbers
            args = (args[0], torch.tensor(args[1]))
        args, kwargs = tree_map(lambda each: HIDDEN if _is_cuda(each) else each, (args, kwargs))
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (isinstance(value, str) and value == "cuda")


def _run(func: Any, args: Any, kwargs: dict[str, Any], waits: Counter[str], *, exact: bool = False) -> Any:
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
        result = (_in_float64 if exact and func in PRODUCTS else _plain)(func, real_args, real_kwargs)
    stays = target == HIDDEN if target is not None else bool(on_cuda)

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or not stays:
            return value
        return wrappers.get(id(value)) if id(value) in wrappers else OnCuda(value)

    return tree_map(wrap, result)


def _plain(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _in_float64(func: Any, args: Any, kwargs: Any) -> Any:
    wide = [each.double() if isinstance(each, Tensor) else each for each in args]
    return func(*wide, **kwargs).to(args[0].dtype)


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


# ------------------------------------------------------------------------------------------------------- captured steps


@dataclass
class Graphs:
    """Captures steps, and refuses to run one again whose tensors are others, or which waits for the host."""

    waits: Counter[str]
    captured: list[int] = field(default_factory=list)  # the rows of each
    replays: int = 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        steps: DeviceSteps = step.__self__
        addresses = self.addresses(steps)
        self.captured.append(len(steps.tokens))

        def replay() -> None:
            assert self.addresses(steps) == addresses
            before = Counter(self.waits)
            step()
            assert self.waits == before
            self.replays += 1

        return replay

    def addresses(self, steps: DeviceSteps) -> list[int]:
        """Where the tensors are that a step reads and writes, and that are not its own."""
        own = [steps.tokens, steps.at, steps.number, steps.numbers, steps.sampled, steps.logprobs]
        cached = [tensor for layer in steps.cache.layers for tensor in layer.tensors]
        return [each.numbers.data_ptr() for each in (*own, *cached) if isinstance(each, OnCuda)]


# ---------------------------------------------------------------------------------------------------------- whole runs

MEMORY, LARGEST = 2**34, 2**16


@contextmanager
def pretended_gpu() -> Iterator[Graphs]:
    """Let a whole run find a GPU that is not there, in this process; yield what captures steps.

    It has no autocast, so that products in bfloat16 are those in float32, and they are rounded otherwise than those of
    a processor. If its memory is limited, whatever the limit, a product of a training pass may have `LARGEST` bytes.
    """
    with pytest.MonkeyPatch.context() as patch, pretended_cuda() as waits, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "CUDA is not available", UserWarning)
        graphs = Graphs(waits)
        patch.setattr(Dispatch, "exact", True)
        patch.setattr(continuous_batching, "CAPTURES", {"cuda": graphs})
        cuda: dict[str, Callable[..., Any]] = {
            "get_device_name": lambda *_: "a GPU that is not there",
            "mem_get_info": lambda *_: (MEMORY, MEMORY),
            "memory_reserved": lambda *_: 0,
            "memory_allocated": lambda *_: 0,
            "set_per_process_memory_fraction": lambda *_: patch.setattr(Dispatch, "largest", LARGEST),
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        yield graphs
