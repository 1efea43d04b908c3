"""An advantage with a mistake, to see whether a band notices it."""

import torch
from torch import Tensor

from outdo.algorithms.advantages import group_standardised


def next_row(rewards: Tensor, group: Tensor) -> Tensor:
    """Return [B], where every answer has the advantage of the row after it: an index that is wrong by one."""
    return torch.roll(group_standardised(rewards, group), -1)
