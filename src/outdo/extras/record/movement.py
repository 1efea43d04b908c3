"""Summarise a step's record in a few numbers: did the probabilities really move?"""

from torch import Tensor

from outdo.algorithms import progress
from outdo.algorithms.objectives.base import given
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.progress import NOISE
from outdo.extras.record.bounds import is_unreachable
from outdo.extras.record.tokens import TokenRecord
from outdo.types import Batch

CERTAIN = 0.99
"""A token with a larger probability can hardly gain any more."""


def movement_metrics(record: TokenRecord, batch: Batch) -> dict[str, float]:
    """Compute the metrics of how the pushed tokens moved. Metrics without data are left out.

    A token that several answers of a group have in the same context counts once, with its net push
    (`tokens.net_pushes`). Its weight is how far that push could move it, to first order: a gradient of n with respect
    to log π is one of n (1 - π) with respect to the token's own logit, so that the **leverage** of a token is |n| (1 -
    π_old).

        moved_as_intended, moved_wrong_way, moved_not
                         shares of the leverage; not: by no more than the noise of a log-probability. They add up to 1
        step_kl          mean of k3, an estimate of KL(π_old‖πθ) in nats per token, over all trained tokens
        moved/tokens, moved/groups
                         the number of tokens, each counted once, and of groups: the n of the estimate
        target_reached   share of the tokens with a reachable bound that went 90 % of the way to it, or farther
        overshoot        share of the same tokens that went beyond it by more than 10 % of the way
        attained         achieved share of the requested change in probability, of the same tokens: `progress.attained`
        unreachable      share of the pushed tokens with a known bound whose bound is out of reach
        certain          share of all net push that goes to tokens whose probability was already above 0.99
        cancelled        share of all push that cancels between answers
        regularisation   Σ |kl_pull| / Σ (|policy_push| + |kl_pull|) over the tokens that the rewards push

    The last three cover all trained tokens, the others the rows with `new_logprobs`. `unreachable` covers all rows if
    there are no `new_logprobs` or if the bounds are targets. A bound belongs to a token's own push, so
    `target_reached`, `overshoot` and `attained` leave out tokens whose net push has the opposite direction.
    """
    push = (record.policy_push + record.kl_pull).nan_to_num(0.0).where(batch.loss_mask, 0.0)
    net = record.net_push.nan_to_num(0.0).where(batch.loss_mask, 0.0)
    old, new = record.old_logprobs.nan_to_num(0.0), record.new_logprobs.nan_to_num(0.0)
    batch = batch.with_(old_logprobs=old, prepared={**batch.prepared, "share": record.share})
    scored_again = batch.loss_mask & record.new_logprobs.isfinite() & record.policy_push.isfinite()
    measured = (net != 0) & scored_again
    metrics = _push_metrics(push, net, record, batch) | _regularisation(record, batch)
    if scored_again.any():
        metrics["step_kl"] = float(k3(old, new)[scored_again].mean())
    if measured.any():
        leverage = record.share.double() * net.abs() * -old.expm1().clamp(max=0.0)
        metrics |= _movement_shares(((new - old) * net.sign())[measured], leverage[measured])
        metrics |= {
            "moved/tokens": float(record.share[measured].double().sum().round()),
            "moved/groups": float(len(batch.group[measured.any(1)].unique())),
        }
    reachable = measured & (push * net > 0) & record.bound.isfinite() & ~is_unreachable(record.bound, batch)
    return metrics | _bound_metrics(batch.with_(loss_mask=reachable, targets=record.bound.where(reachable, old)), new)


def _push_metrics(push: Tensor, net: Tensor, record: TokenRecord, batch: Batch) -> dict[str, float]:
    """Compute the metrics that do not need `new_logprobs`."""
    metrics: dict[str, float] = {}
    old = given(batch.old_logprobs, "old_logprobs")
    beyond, pushed = is_unreachable(record.bound, batch), push != 0
    within = pushed & record.bound.isfinite()
    if (within | (pushed & beyond)).any():
        targeted = batch.with_(
            loss_mask=within | (pushed & beyond),
            targets=record.bound.where(within, old),
            prepared={**batch.prepared, "unreachable": beyond},
        )
        metrics["unreachable"] = progress.unreachable(targeted)
    spent = record.share.double() * net.abs()
    if pushed.any():
        metrics["cancelled"] = max(0.0, 1.0 - float(spent.sum() / push.double().abs().sum()))
    if spent.any():
        metrics["certain"] = float(spent.where(old.exp() > CERTAIN, 0.0).sum() / spent.sum())
    return metrics


def _regularisation(record: TokenRecord, batch: Batch) -> dict[str, float]:
    """Compute the share of the push that does not come from the rewards."""
    policy = record.policy_push.nan_to_num(0.0).double().abs().where(batch.loss_mask, 0.0)
    other = record.kl_pull.nan_to_num(0.0).double().abs().where(policy > 0, 0.0)
    return {"regularisation": float(other.sum() / (policy + other).sum())} if policy.any() else {}


def _movement_shares(moved: Tensor, leverage: Tensor) -> dict[str, float]:
    """Return shares of the leverage, by how many nats each token moved in the direction of its net push. [N] each"""
    total = float(leverage.sum())
    if total == 0:  # every token is certain
        return {}
    masks = {"moved_as_intended": moved > NOISE, "moved_wrong_way": moved < -NOISE, "moved_not": moved.abs() <= NOISE}
    return {name: float(leverage[those].sum()) / total for name, those in masks.items()}


def _bound_metrics(batch: Batch, new: Tensor) -> dict[str, float]:
    """Compute how far tokens came on the way to their bounds, which `batch` has as targets."""
    moves = progress.movable(batch)
    if not moves.any():
        return {}
    farther = progress.progress(batch, new) > 1
    return {
        "target_reached": progress.reached(batch, new.where(~farther, given(batch.targets, "targets"))),
        "overshoot": progress.overshoot(batch, new),
        "attained": progress.attained(batch, new),
    }
