"""The device to train on, the precision of its products, and determinism."""

import os
import platform
from typing import Literal

import torch

from outdo.utils.errors import UserError
from outdo.utils.text import counted, first_line

Precision = Literal["auto", "float32", "bfloat16"]  # auto: bfloat16 on an accelerator, float32 on a CPU


def choose_device(name: str = "auto") -> tuple[torch.device, str]:
    """Return the device to train on, and why. `auto`: CUDA, else MPS, else the CPU; any other name is used as it is.

    Raises `UserError` if `name` is no device of this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), f"{torch.cuda.get_device_name()} was found"
        if torch.backends.mps.is_available():
            return torch.device("mps"), "an Apple GPU was found"
        threads = torch.get_num_threads()
        return torch.device("cpu"), f"no GPU was found; {counted(threads, 'thread')}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch's own way of saying "Torch not compiled with CUDA enabled"
        mistake = f"device {name!r} is not usable here ({first_line(error)}); use auto, cpu, cuda, cuda:1, ... or mps"
        raise UserError([mistake]) from None
    return device, "as requested"


def resolve_precision(precision: Precision, device: torch.device) -> Literal["float32", "bfloat16"]:
    """Return the precision of matrix products on a device. The weights are float32 in any case."""
    if precision == "auto":
        return "float32" if device.type == "cpu" else "bfloat16"
    return precision


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads of the CPU; None leaves its own choice."""
    if threads is not None:
        torch.set_num_threads(threads)


def make_deterministic(device: torch.device | str) -> None:
    """Let torch use only deterministic algorithms, in this whole process and in the processes that it starts from here.

    With several threads a CPU, too, has others: the backward pass of `x[indices]` adds up what belongs to one index in
    whatever order the threads arrive. An operation without a deterministic algorithm raises `RuntimeError` on a CPU; on
    CUDA torch warns. On other devices nothing changes.
    """
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        return
    if kind == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    set_deterministic("warn" if kind == "cuda" else "error")


def describe_hardware(device: str) -> str:
    """Return what a device is: the name of the GPU, or the instructions that torch's code for this CPU uses.

    Two machines with another one may round differently.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def set_deterministic(mode: int | str) -> None:
    """Set torch's debug mode of deterministic algorithms: what another process has, or what `make_deterministic` sets.

    It is `torch.use_deterministic_algorithms`, without the import of the compiler, which takes a second.
    """
    torch.set_deterministic_debug_mode(mode)
    # It takes time, and no memory is read before a write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
