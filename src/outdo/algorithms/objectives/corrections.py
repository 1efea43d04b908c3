"""Piece 4, the correction c: it compensates for an engine that is not exactly the policy. [B, T], [B, 1] or a number.

A correction takes `(logprobs, batch)`: log πθ without its gradient [B, T], and a batch with `old_logprobs` and
`rollout_logprobs`, 0 outside of `loss_mask`. It has no gradient. The built-in engine samples from the trainer's own
weights and needs no correction; the mismatch is measured at every step.

w = π_old / π_rollout is taken at one of three levels:

    "token"      w_it                        the probability of the token
    "sequence"   Π_t w_it                    that of the whole answer
    "geometric"  (Π_t w_it)^(1 / |o_i|)      its mean per token

The logarithm of w is clamped to ±20.

A correction multiplies only S, never D or H, and denominators stay the same: a token with c = 0 still counts.
TRL's four modes are `truncate` and `mask` at the levels "token" and "sequence", with low = 0 and high = 3.
"""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.objectives.divergences import Divergence, k1, k2, k3
from outdo.algorithms.objectives.ratios import LOG_RATIO_CLAMP, Level, old_logprobs, sequence, sequence_product, token
from outdo.algorithms.requirements import requirements_of, requires
from outdo.algorithms.shapes import Correction, Factor
from outdo.types import Batch
from outdo.utils.errors import did_you_mean

At = Literal["token", "sequence", "geometric"]
RejectAt = Literal["token", "sequence", "geometric", "max"]
Choice = TypeVar("Choice")

LEVELS: dict[str, Level] = {"token": token, "sequence": sequence_product, "geometric": sequence}
ESTIMATORS: dict[str, Divergence] = {"k1": k1, "k2": k2, "k3": k3}


def none(logprobs: Float[Tensor, "B T"], batch: Batch) -> float:
    """Return 1: the engine is the policy."""
    return 1.0


def truncate(*, level: At = "token", low: float = 0.0, high: float = 2.0) -> Correction:
    """c = clip(w, low, high): truncated importance sampling (TIS), bounded, and biased outside of the bounds.

    verl's default cap is 2, TRL's 3 (`token_truncate`, `sequence_truncate`).
    """
    _in_order(low, high)
    weight = _weight(level)

    def correction(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"] | Float[Tensor, "B 1"]:
        return weight(logprobs, batch).clamp(low, high)

    return correction


def mask(*, level: At = "token", low: float = 0.5, high: float = 2.0) -> Correction:
    """c = w · 1[low ≤ w ≤ high]: IcePop (arXiv 2510.18855) at the level "token", masked importance sampling (MIS).

    Tokens outside of the bounds are dropped, not clipped. TRL's `token_mask`, and its default `sequence_mask`, have
    low = 0 by default, and high = 3.
    """
    _in_order(low, high)
    weight = _weight(level)

    def correction(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"] | Float[Tensor, "B 1"]:
        w = weight(logprobs, batch)
        return w * ((low <= w) & (w <= high))

    return correction


def sequence_mask(*, low: float = 0.5, high: float = 2.0) -> Correction:
    """c_it = w_it · 1[low ≤ (Π_t w_it)^(1/|o_i|) ≤ high]: the mask is by answer, the weight by token.

    OpenRLHF's `seq-mask-tis`.
    """
    _in_order(low, high)
    weight, mean = _weight("token"), _weight("geometric")

    def correction(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"] | Float[Tensor, "B 1"]:
        whole = mean(logprobs, batch)
        return weight(logprobs, batch) * ((low <= whole) & (whole <= high))

    return correction


def reject(
    *,
    high: float,
    low: float | None = None,
    estimator: Literal["k1", "k2", "k3"] = "k3",
    level: RejectAt = "geometric",
) -> Correction:
    """c = 1[low ≤ k ≤ high]: drop tokens or answers on which engine and trainer disagree, and do not weight the rest.

    k estimates KL(π_rollout‖π_old), in nats, with d = log π_rollout - log π_old = -log w: of the token, or the answer's
    sum ("sequence"), mean ("geometric") or largest value ("max") of it: verl's seq_sum, seq_mean and seq_max, AReaL's
    `agg`. The default of `low` is -high; k2 and k3 are never negative. Note that k1 is *minus* log w, and verl's bounds
    for k1 are exponentials of these, on π_rollout / π_old; `low = math.log(0.5)`, `high = math.log(2)` is verl's
    "0.5_2". AReaL's k1 and k3 are those of 1 / w: its k1 is log w, its k3 is 1/w - 1 + log w.

    Raises ValueError for bounds that drop everything.
    """
    estimate = _choice("estimator", estimator, ESTIMATORS)
    combine = _choice("level", level, LEVELS | {"sequence": _sum, "max": _largest})
    least = -high if low is None else low
    if not least <= high:
        raise ValueError(f"reject: expected low <= high, not {least} and {high}: everything would be dropped")

    def correction(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"] | Float[Tensor, "B 1"]:
        k = combine(estimate(batch.rollout_logprobs, old_logprobs(logprobs, batch)), batch.loss_mask)
        return ((least <= k) & (k <= high)).to(logprobs.dtype)

    return correction


def off_policy_rows(*, limit: float, by: Literal["rollout", "old"] = "rollout") -> Correction:
    """c = 0 where Â < 0 and 1/|o_i| Σ_t (log π_by - log πθ) > limit, else 1; DeepSeek-V3.2 (arXiv 2512.02556).

    A bad answer from which the policy has moved away is not trained. π_by is the policy that sampled it ("rollout"), or
    π_old. πθ is the policy of this pass, so answers can drop out between passes. TRL's `off_policy_mask_threshold` does
    the same, and uses π_old where the engine reports nothing.

    Raises ValueError for a limit below 0, which drops bad answers from which nothing has moved away.
    """
    _choice("by", by, {"rollout": None, "old": None})
    if not limit >= 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")

    def correction(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"] | Float[Tensor, "B 1"]:
        sampled = batch.rollout_logprobs if by == "rollout" else old_logprobs(logprobs, batch)
        is_near = sequence(sampled - logprobs, batch.loss_mask) <= limit
        return (is_near if batch.advantages is None else is_near | (batch.advantages >= 0)).to(logprobs.dtype)

    return correction


def product(*corrections: Correction) -> Correction:
    """c = c_1 c_2 ...: several corrections together, such as a weight for the tokens that `reject` keeps."""

    @requires(requirements_of(*corrections))
    def correction(logprobs: Float[Tensor, "B T"], batch: Batch) -> Factor:
        factor: Factor = 1.0
        for part in corrections:
            factor = factor * part(logprobs, batch)
        return factor

    return correction


def _sum(values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the sum of each answer at each of its tokens. Unlike a logarithm of a ratio it has no limit."""
    return values.sum(1, keepdim=True) * loss_mask


def _largest(values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the largest value of each answer at each of its tokens; 0 for an answer without a trained token."""
    return values.where(loss_mask, -torch.inf).amax(1, keepdim=True).where(loss_mask, 0.0)


def _in_order(low: float, high: float) -> None:
    if not 0 <= low <= high:
        raise ValueError(f"expected 0 <= low <= high, not {low} and {high}")


def _weight(level: str) -> Callable[[Float[Tensor, "B T"], Batch], Float[Tensor, "B T"] | Float[Tensor, "B 1"]]:
    """Return the function for w = π_old / π_rollout: by token [B, T], 1 outside of the mask, or by answer [B, 1]."""
    combine = _choice("level", level, LEVELS)

    def weight(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"] | Float[Tensor, "B 1"]:
        log_w = combine(old_logprobs(logprobs, batch) - batch.rollout_logprobs, batch.loss_mask)
        if level != "token":  # one number, repeated at each of the answer's tokens
            log_w = log_w.sum(1, keepdim=True) / batch.loss_mask.sum(1, keepdim=True).clamp(min=1)
        return log_w.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP).exp()

    return weight


def _choice(option: str, name: str, known: Mapping[str, Choice]) -> Choice:
    if name not in known:
        hint = did_you_mean(name, list(known))
        raise ValueError(f'{option} must be one of {", ".join(known)}, not "{name}"{hint}')
    return known[name]
