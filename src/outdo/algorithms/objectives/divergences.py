"""Piece 3, the divergence D from the reference, estimated on the sampled token. All take two tensors of one
shape, [B, T] in an objective, and return that shape.

d = log πθ - log π_ref of the sampled token (Schulman's note, http://joschu.net/blog/kl-approx.html). The
value of an estimator and its gradient in a loss are two different things: on tokens sampled from πθ,
the gradient of k1 is zero in expectation, that of k2 is the gradient of KL(πθ‖π_ref), and that of k3 the gradient of
KL(π_ref‖πθ). With `kl_ratio`, k3 × ρ has the gradient of KL(πθ‖π_ref), also on tokens sampled from π_old; k2 × ρ has
not. `docs/methods/index.md` has the whole table.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.objectives.ratios import LOG_RATIO_CLAMP

Divergence = Callable[[Float[Tensor, "B T"], Float[Tensor, "B T"]], Float[Tensor, "B T"]]
"""`(logprobs, ref_logprobs) -> D`."""


def k1(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """d: unbiased for KL(πθ‖π_ref), positive or negative."""
    return logprobs - ref_logprobs


def absolute(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """|d|, in recipes "abs": not an estimate of a KL; its gradient has the same size at every distance."""
    return (logprobs - ref_logprobs).abs()


def k2(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """d² / 2: biased, never negative."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^-d - 1 + d: unbiased for KL(πθ‖π_ref), never negative; DeepSeekMath (arXiv 2402.03300) equation 4.

    d is clamped above -20, so that e^-d does not overflow (verl clamps it to ±20, TRL has no clamp).
    """
    d = (logprobs - ref_logprobs).clamp(min=-LOG_RATIO_CLAMP)
    return (-d).expm1() + d
