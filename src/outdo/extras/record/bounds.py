"""Find how far an objective pushes a token: the log-probability at which it stops, by evaluating the objective."""

from collections.abc import Callable

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import Objective, given
from outdo.algorithms.progress import FULL
from outdo.types import Batch, TokenScores

SCAN_STEPS = 8
"""The number of coarse search steps, so that the search finds the first stop and not a later one."""
BISECTIONS = 23
"""The number of bisections of the way to the first stop: 5 nats / 2^23 is 6e-7."""
FADED_SHARE = 1e-4
"""A push that falls below this share of its start and then rounds to 0 has faded, as with `sapo`: it is not a bound."""
SIGN_MARGIN = 1.001
"""Where a push changes sign, it can round to 0; this much farther out the new sign is certain."""


def bounds(
    objective: Objective,
    batch: Batch,
    push: Tensor,
    *,
    farthest: float = 5.0,
    scan_steps: int = SCAN_STEPS,
    bisections: int = BISECTIONS,
) -> Tensor:
    """Find the log-probability at which the objective stops pushing each token. [B, T] nats

    `push` [B, T] is the derivative of the policy term with respect to the log-probability at π_old (`policy_push`), and
    `batch` has `old_logprobs`. Move a token in the direction of its push, together with the other tokens of its answer:
    its bound is where this derivative becomes 0 or changes sign. If all tokens are just before their bounds, each is
    still pushed; just after them, it is not.

    NaN if a token is not pushed or has no such point: the push continues for `farthest` nats, it only fades, or its end
    depends on how far other answers have moved. A bound above 0 is a probability above 1, which no token reaches. If
    the objective sets targets, these are the bounds.

    It evaluates only the objective, no model: some 35 times, with gradients. Raises ValueError without `old_logprobs`.
    """
    if batch.targets is not None:
        return batch.targets.where(batch.loss_mask, torch.nan)
    direction = push.sign()
    if not direction.any():
        return torch.full_like(push, torch.nan)
    old = given(batch.old_logprobs, "old_logprobs")

    def push_at(distance: Tensor) -> Tensor:
        """Return how strongly each token is pushed on at this distance; below 0 it is pushed back. [B, T]"""
        return policy_push(objective, batch, old + direction * distance) * direction

    short, past = _search(push_at, direction, farthest, scan_steps, bisections)
    start = push_at(torch.zeros_like(old))

    def stops(rows: Tensor) -> Tensor:
        """Return whether the push ends between `short` and `past` if only these rows [B, 1] move."""
        before, after = push_at(_fill_missing(short) * rows), push_at(_fill_missing(past) * rows)
        turned = push_at(SIGN_MARGIN * _fill_missing(past) * rows) < 0
        return (before > 0) & ~(after > 0) & (turned | (before > FADED_SHARE * start))

    has_bound = stops(torch.ones_like(old[:, :1]))
    if objective.requires.whole_groups:  # for any two answers, move only one: its push must end at the same place
        for half in _row_splits(batch.group):
            has_bound &= torch.where(half, stops(half), stops(~half))
    return (old + direction * (short + past) / 2).where(has_bound, torch.nan)


def policy_push(objective: Objective, batch: Batch, logprobs: Tensor) -> Tensor:
    """Compute the derivative of the objective's policy term with respect to log πθ at `logprobs`. [B, T]

    Sums over the vocabulary, which depend on the whole distribution, are set to 0, as if the policy term had none.
    """
    leaf = logprobs.detach().clone().requires_grad_()
    terms = objective(scores_of(objective, leaf), batch)
    return torch.autograd.grad(terms.policy, leaf)[0]


def scores_of(objective: Objective, logprobs: Tensor) -> TokenScores:
    """Return scores with these log-probabilities [B, T], and 0 for each sum that the objective may read."""
    nothing = torch.zeros_like(logprobs)
    return TokenScores(logprobs=logprobs, sums=dict.fromkeys(("entropy", *objective.requires.differentiated), nothing))


def is_unreachable(bound: Tensor, batch: Batch) -> Tensor:
    """Return tokens whose bound is a probability of 1 or more, or whose rule asks for one. [B, T] bool"""
    beyond = batch.prepared.get("unreachable", torch.zeros_like(batch.loss_mask))
    return (beyond | (bound > -FULL)) & batch.loss_mask


def _search(
    push_at: Callable[[Tensor], Tensor], direction: Tensor, farthest: float, scan_steps: int, bisections: int
) -> tuple[Tensor, Tensor]:
    """Return the distances just before and just after the first stop; NaN without one. [B, T] each"""
    past = torch.full_like(direction, torch.nan).where(direction != 0, 0.0)
    for stride in range(1, scan_steps + 1):
        distance = torch.full_like(direction, farthest * stride / scan_steps)
        stopped = ~(push_at(distance) > 0)
        past = past.where(past.isfinite() | ~stopped, distance)
        if past.isfinite().all():
            break
    short = torch.zeros_like(past).where(past.isfinite(), torch.nan)
    for _ in range(bisections if (past > 0).any() else 0):
        middle = (short + past) / 2
        still = push_at(_fill_missing(middle)) > 0
        short, past = short.where(~still, middle), past.where(still, middle)
    return short, past


def _fill_missing(distance: Tensor) -> Tensor:
    """Give tokens without a bound the largest distance of their answer. [B, T]"""
    known = distance.nan_to_num(0.0)
    return distance.where(distance.isfinite(), known.amax(1, keepdim=True))


def _row_splits(group: Tensor) -> list[Tensor]:
    """Return row masks [B, 1] such that any two rows of a group, which are contiguous, differ in at least one."""
    largest = int(group.unique(return_counts=True)[1].max())
    number = torch.arange(len(group), device=group.device)[:, None]
    return [(number >> bit) % 2 == 1 for bit in range((largest - 1).bit_length())]
