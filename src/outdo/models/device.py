"""The device to train on."""

import torch

from outdo.utils.errors import UserError


def choose_device(name: str = "auto") -> tuple[torch.device, str]:
    """The device to train on, and why. `auto`: CUDA, else MPS, else the CPU; anything else is taken at its word.

    Raises `UserError` if `name` is no device of this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), f"{torch.cuda.get_device_name()} was found"
        if torch.backends.mps.is_available():
            return torch.device("mps"), "an Apple GPU was found"
        threads = torch.get_num_threads()
        return torch.device("cpu"), f"no GPU was found; {threads} thread{'s' * (threads != 1)}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch's own way of saying "Torch not compiled with CUDA enabled"
        mistake = f"device {name!r} is not usable here ({_first_line(error)}); use auto, cpu, cuda, cuda:1, ... or mps"
        raise UserError([mistake]) from None
    return device, "as asked"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
