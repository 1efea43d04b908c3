"""How far an objective pushes a token: the log-probability at which it stops, asked of the objective itself."""

from collections.abc import Callable

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import Objective, given
from outdo.algorithms.objectives.target.rules import FULL
from outdo.types import Batch, TokenScores

SCANNED = 8
"""The way is first searched in this many strides, so that the first stop is found and not a later one."""
HALVINGS = 23
"""Of the way to the first stop: 5 nats / 2^23 is 6e-7."""
FADED = 1e-4
"""A push below this share of its start that rounds to 0 has faded away, as a soft gate's does: that is no bound."""
FARTHER = 1.001
"""Where a push turns, it may round to 0; so much farther out it has turned for certain."""


def bounds(objective: Objective, batch: Batch, push: Tensor, *, farthest: float = 5.0) -> Tensor:
    """The log-probability at which the objective stops to push each token. [B, T] nats

    `push` [B, T] is the policy term's derivative by the log-probability at π_old (`policy_push`), and `batch` has
    `old_logprobs`. A token's bound is where, moved the way of its push, and the others of its answer with it, this
    derivative becomes 0 or turns. With all tokens just short of their bounds each is still pushed; just past, not.

    NaN where a token is not pushed, or has no such point: it is pushed on for `farthest` nats, the push only fades, or
    where it ends depends on how far other answers have gone. Above 0 is a probability above 1, which no token reaches.
    Where the objective sets targets, they are the bounds.

    Only the objective is asked, no model: some 35 times, with gradients. Raises ValueError without `old_logprobs`.
    """
    if batch.targets is not None:
        return batch.targets.where(batch.loss_mask, torch.nan)
    way = push.sign()
    if not way.any():
        return torch.full_like(push, torch.nan)
    old = given(batch.old_logprobs, "old_logprobs")

    def pushed(distance: Tensor) -> Tensor:
        """How hard each token is pushed on when they have gone so far, below 0: pushed back. [B, T]"""
        return policy_push(objective, batch, old + way * distance) * way

    short, past = _search(pushed, way, farthest)
    start = pushed(torch.zeros_like(old))

    def stops(rows: Tensor) -> Tensor:
        """Whether the push ends between the two, when only these rows [B, 1] move."""
        before, after = pushed(_together(short) * rows), pushed(_together(past) * rows)
        turned = pushed(FARTHER * _together(past) * rows) < 0
        return (before > 0) & ~(after > 0) & (turned | (before > FADED * start))

    found = stops(torch.ones_like(old[:, :1]))
    if objective.requires.whole_groups:  # of any two answers one stays behind: does the other one's push end as before?
        for half in _halves(batch.group):
            found &= torch.where(half, stops(half), stops(~half))
    return (old + way * (short + past) / 2).where(found, torch.nan)


def policy_push(objective: Objective, batch: Batch, logprobs: Tensor) -> Tensor:
    """The derivative of the objective's policy term by log πθ, were the policy at `logprobs`. [B, T]

    What depends on the whole distribution, the entropy, is taken for 0: it is not in the policy term.
    """
    leaf = logprobs.detach().clone().requires_grad_()
    terms = objective(TokenScores(logprobs=leaf, entropy=torch.zeros_like(logprobs)), batch)
    return torch.autograd.grad(terms.policy, leaf)[0]


def out_of_reach(bound: Tensor, batch: Batch) -> Tensor:
    """Tokens whose bound is a probability of 1 or more, or whose rule asked for more than there is. [B, T] bool"""
    beyond = batch.prepared.get("unreachable", torch.zeros_like(batch.loss_mask))
    return (beyond | (bound > -FULL)) & batch.loss_mask


def _search(pushed: Callable[[Tensor], Tensor], way: Tensor, farthest: float) -> tuple[Tensor, Tensor]:
    """Distances just short of and just past the first stop. NaN where there is none. [B, T] each"""
    past = torch.full_like(way, torch.nan).where(way != 0, 0.0)
    for stride in range(1, SCANNED + 1):
        distance = torch.full_like(way, farthest * stride / SCANNED)
        stopped = ~(pushed(distance) > 0)
        past = past.where(past.isfinite() | ~stopped, distance)
        if past.isfinite().all():
            break
    short = torch.zeros_like(past).where(past.isfinite(), torch.nan)
    for _ in range(HALVINGS if (past > 0).any() else 0):
        middle = (short + past) / 2
        still = pushed(_together(middle)) > 0
        short, past = short.where(~still, middle), past.where(still, middle)
    return short, past


def _together(distance: Tensor) -> Tensor:
    """Tokens without a bound go along with the farthest of their answer. [B, T]"""
    known = distance.nan_to_num(0.0)
    return distance.where(distance.isfinite(), known.amax(1, keepdim=True))


def _halves(group: Tensor) -> list[Tensor]:
    """Rows, each [B, 1] bool, so that any two of a group, which are neighbours, are in different halves once."""
    largest = int(group.unique(return_counts=True)[1].max())
    number = torch.arange(len(group), device=group.device)[:, None]
    return [(number >> bit) % 2 == 1 for bit in range((largest - 1).bit_length())]
