"""Which groups teach anything: the advantage decides, because it alone knows what it compares.

Advantages compare different things: the rewards of whole answers, of turns, the parts of the reward, verdicts, or an
answer with a baseline. So no rule about rewards says which groups have a gradient; the advantages that they get do.
"""

from collections.abc import Sequence
from dataclasses import fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.advantages.base import Advantage, compute_advantages
from outdo.algorithms.advantages.group import group_centred
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.types import Batch, Group

IN_THE_GROUP = ("baselines", "right", "whole_groups")
"""What an advantage may require and still be asked about sampled groups: no model has to score them."""

ROUNDING = 1e-6
"""The share of the largest advantage of a batch below which another one is a rounding error."""


def groups_with_signal(advantage: Advantage, groups: Sequence[Group]) -> list[bool]:
    """Return for each sampled group whether `advantage` gives one of its trained tokens an advantage that is not 0.

    Each group is asked alone, before any model has scored it. Raises `ValueError` for an advantage that cannot be asked
    so: see `cannot_be_asked`.
    """
    if reason := cannot_be_asked(advantage):
        raise ValueError(f"the advantage {reason}")
    step = Batch.from_groups(groups)
    return [_has_signal(advantage, step, number) for number in range(len(groups))]


def cannot_be_asked(advantage: Advantage) -> str:
    """Return why it is unknown, when a group is sampled, which advantages it will get; empty if it is known."""
    required = requirements_of(advantage)
    if required.whole_batch:
        return "also learns from a group whose rewards are all equal: it compares them with those of other groups"
    missing = [
        field.name for field in fields(Requires) if getattr(required, field.name) and field.name not in IN_THE_GROUP
    ]
    return f"needs {' and '.join(missing)}, which sampled groups do not have yet" if missing else ""


def signal_of(batch: Batch) -> Bool[Tensor, "P"]:
    """Return for each group of a trained batch whether one of its trained tokens has an advantage that is not 0.

    The groups are in the order of their rows. Advantages that are a rounding error beside the largest one count as 0.
    """
    _, group = batch.group.unique_consecutive(return_inverse=True)  # [B]
    largest = torch.zeros(int(group.max()) + 1 if len(group) else 0, dtype=torch.float32)
    if batch.advantages is not None and len(group):
        sizes = batch.advantages.detach().abs().where(batch.loss_mask, 0.0).amax(1).float()  # [B]
        largest = largest.scatter_reduce(0, group, sizes, "amax")
    return largest > ROUNDING * largest.max() if len(largest) else largest.bool()


def rewards_differ(rewards: Float[Tensor, "G"]) -> bool:
    """Return whether the rewards of one group differ, as an advantage that compares them sees it."""
    return bool(group_centred(rewards, torch.zeros_like(rewards, dtype=torch.int64)).any())


def _has_signal(advantage: Advantage, step: Batch, number: int) -> bool:
    rows = (step.group == number).nonzero().squeeze(1)
    if not step.loss_mask[rows].any():
        return False
    batch = compute_advantages(advantage, step.rows(rows))
    return batch.advantages is not None and bool((batch.advantages != 0)[batch.loss_mask].any())
