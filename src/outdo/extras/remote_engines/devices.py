"""Where the processes of the built-in engine compute: a device for each, which the recipe names or outdo chooses."""

import os
from collections.abc import Sequence

import torch

from outdo.config.engines import RAY, RAY_ADDRESS
from outdo.config.recipe import Piece
from outdo.models.device import choose_device
from outdo.utils.errors import UserError


def device_mistakes(piece: Piece, trainer: str, *, replicas: int = 1) -> list[str]:
    """Return what is wrong on this machine with the devices of the built-in engine's processes.

    `trainer` is the name of the device that the policy is on; `replicas` is how many of them the run has.
    """
    if os.environ.get("RANK", "0") != "0":
        return []
    options, of_trainer = piece.options, choose_device(trainer)[0]
    if options.get("place") == RAY and RAY_ADDRESS in os.environ:  # Ray knows the devices of its machines
        return []
    try:
        devices = devices_of(
            of_trainer, options["processes"], options.get("devices"), replicas=on_this_machine(replicas)
        )
    except UserError as error:
        return list(error.problems)
    gpus = torch.cuda.device_count()
    available = [
        "cpu",
        *(["mps"] if torch.backends.mps.is_available() else []),
        *(f"cuda:{index}" for index in range(gpus)),
    ]
    return [
        f"engine.devices: this machine has no {device}; it has {', '.join(available)}"
        for device in devices
        if device not in available
    ]


def on_this_machine(replicas: int) -> int:
    """Return how many of the replicas run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", replicas))


def devices_of(trainer: torch.device, processes: int, devices: Sequence[str] | None, *, replicas: int) -> Sequence[str]:
    """Return a device for each process: the given ones, or else the GPUs after those of the trainer's replicas."""
    if devices is not None:
        return devices
    if trainer.type != "cuda":
        return [trainer.type] * processes
    first, count = replicas + (trainer.index or 0), torch.cuda.device_count()
    if first + processes > count:
        raise UserError(
            [
                f"engine.processes = {processes} needs as many GPUs after the trainer's, cuda:{first - 1}, and this "
                f'machine has {count} in all; name others, such as devices = ["cuda:0"] to share one'
            ]
        )
    return [f"cuda:{index}" for index in range(first, first + processes)]
