"""Sums of the bits of weights: processes compare them to find out whether their weights are equal."""

from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_sums(weights: Iterable[Tensor]) -> list[int]:
    """Return for each weight the sum of its numbers, read as integers: the same on every device, in any order."""
    sums = [tensor.detach().view(_INTEGERS[tensor.element_size()]).sum().cpu() for tensor in weights]
    return torch.stack(sums).tolist()
