"""Piece 2, the surrogate S(ρ, Â): the value per token that an objective maximises.

A surrogate takes `(log_ratio, logprobs, advantages, batch)`, each tensor [B, T], and returns [B, T]. Its values outside
of `loss_mask` are never read. ρ is the ratio at the objective's level, sg a stopped gradient.

Three kinds: those that bound the ratio (`clip`, `sapo`, `gmpo`), those that multiply the gradient of
log πθ by a detached number (`log_likelihood`, `cispo`, `vespo`, `dppo_tv`, `dppo_kl`), and those that
pull back towards π_old (`dro`, `prime_rl`, `kl_cov`). The pull of the last kind is computed from log ρ without the
objective's clamp: a clamped distance has no gradient, and would stop the pull where it is needed most.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.objectives import ratios
from outdo.algorithms.objectives.ratios import LOG_RATIO_CLAMP, old_logprobs, sequence
from outdo.algorithms.requirements import requirements_of, requires
from outdo.algorithms.shapes import Correction, Factor
from outdo.types import Batch

Surrogate = Callable[[Float[Tensor, "B T"], Float[Tensor, "B T"], Float[Tensor, "B T"], Batch], Float[Tensor, "B T"]]

VESPO_LOG_MIN = math.log(1e-8)  # lower bound of log W in the authors' code; the upper bound is 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The clipped surrogate with its bounds; `clip` makes it."""

    low: float
    high: float
    dual: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value: object = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name} must be a number from 0, not {value!r}")
        if self.dual is not None and not self.dual > 1:
            raise ValueError(f"dual must be above 1, not {self.dual}: it caps the ratio where Â < 0")

    def __call__(
        self,
        log_ratio: Float[Tensor, "B T"],
        logprobs: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        batch: Batch,
    ) -> Float[Tensor, "B T"]:
        """Compute the clipped surrogate, [B, T]."""
        ratio = log_ratio.exp()
        lesser = torch.minimum(ratio * advantages, ratio.clamp(1 - self.low, 1 + self.high) * advantages)
        if self.dual is None:
            return lesser
        return torch.where(advantages < 0, torch.maximum(lesser, self.dual * advantages), lesser)


def clip(*, low: float, high: float, dual: float | None = None) -> Clip:
    """S = min(ρ Â, clip(ρ, 1 - low, 1 + high) Â); PPO (arXiv 1707.06347) equation 7.

    It is flat where the ratio has already moved far enough in the direction of Â: Â > 0 and ρ > 1 + high, Â < 0 and ρ <
    1 - low. On the other side the gradient stays complete, however far the ratio has moved. `dual` (c > 1) limits it
    for Â < 0: S = max(min(...), c Â), flat where ρ > c (arXiv 1912.09729). It is TRL's `delta` where c ≥ 1 + high; verl
    always uses 3.
    """
    return Clip(low=low, high=high, dual=dual)


def unclipped(
    log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
) -> Float[Tensor, "B T"]:
    """S = ρ Â: the importance-weighted policy gradient, without bounds."""
    return log_ratio.exp() * advantages


def log_likelihood(
    log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
) -> Float[Tensor, "B T"]:
    """S = Â log πθ: REINFORCE; with Â = 1, supervised fine-tuning."""
    return logprobs * advantages


def nothing(
    log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
) -> Float[Tensor, "B T"]:
    """S = 0: the advantages push no token, and the other terms of the objective are all that is trained on."""
    return 0 * logprobs


def cispo(*, ratio_min: float = 0.0, ratio_max: float = 5.0) -> Surrogate:
    """S = sg[clip(ρ, ratio_min, ratio_max)] Â log πθ; CISPO, MiniMax-M1 (arXiv 2506.13585) equations 4 and 5.

    No token loses its gradient; only its weight is bounded. The bounds are those of the ratio itself: the paper's are 1
    - ε_low, which the paper does not use, and 1 + ε_high. 5 is ScaleRL's cap (arXiv 2510.13786). TRL's `epsilon_high`
    is also the cap, so its default 0.2 scales every token down to a fifth; verl adds 1.
    """
    if not 0 <= ratio_min <= ratio_max:
        raise ValueError(f"expected 0 <= ratio_min <= ratio_max, not {ratio_min} and {ratio_max}")

    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        return log_ratio.exp().clamp(ratio_min, ratio_max).detach() * advantages * logprobs

    return surrogate


def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Surrogate:
    """S = 4/τ σ(τ (ρ - 1)) Â, τ by the sign of Â; SAPO (arXiv 2511.20347).

    At ρ = 1 its gradient is that of ρ Â. On both sides its derivative by ρ decreases smoothly, without an edge; that by
    log πθ, which has the factor ρ, is largest, 1.57 Â, at ρ = 2.06 (τ = 1).
    Â = 0 uses the negative τ, which has no effect.
    """
    if not (tau_positive > 0 and tau_negative > 0):
        raise ValueError(f"tau_positive and tau_negative must be above 0, not {tau_positive} and {tau_negative}")

    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        tau = torch.full_like(advantages, tau_negative).masked_fill(advantages > 0, tau_positive)
        return 4 / tau * (tau * (log_ratio.exp() - 1)).sigmoid() * advantages

    return surrogate


def gmpo(*, low: float = 0.4, high: float = 0.4) -> Surrogate:
    """S = Â_i exp(1/|o_i| Σ_t c_it), the same at each token; GMPO (arXiv 2507.20673). Use it with `sequence_mean`.

    c = min(d, clip(d, -low, high)) where Â > 0 and max(...) where Â < 0, d = log ρ: one-sided, like PPO's clip, but of
    the logarithm, and before the geometric mean over the answer. It needs the level `token`.
    """
    for name, value in (("low", low), ("high", high)):
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more, not {value}")
    return functools.partial(geometric_mean, low=low, high=high)


def geometric_mean(
    log_ratio: Float[Tensor, "B T"],
    logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    batch: Batch,
    *,
    low: float,
    high: float,
) -> Float[Tensor, "B T"]:
    """Compute the surrogate that `gmpo` makes, [B, T]."""
    within = log_ratio.clamp(-low, high)
    clipped = torch.where(advantages > 0, torch.minimum(log_ratio, within), torch.maximum(log_ratio, within))
    return sequence(clipped, batch.loss_mask).exp() * advantages


def vespo(
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
    engine: Correction | None = None,
) -> Surrogate:
    """S = sg[W^k e^(λ (1 - W))] Â log πθ, W = Π_t ρ_it; VESPO (arXiv 2602.10693).

    The weight is 1 at W = 1, largest at W = k/λ, and decreases on both sides; (k, λ) is one pair for Â ≥ 0, another for
    Â < 0. W is computed here, from log πθ and log π_old: the level of the objective is used only for its divergence.
    Every log ρ is clamped to ±20, log W to [log 1e-8, 20], as in the authors' code and TRL.

    `engine`, from Python only, is a correction that multiplies W: W = Π_t ρ_it c_it, every log c clamped to the bounds
    of log W, as TRL does with its weight for the engine. A correction of the objective is a separate factor. A weight
    of a whole answer, [B, 1], counts once, not once per token.
    """
    if engine is not None and not callable(engine):
        raise ValueError(f"vespo: engine must be a correction, made in Python, not {engine!r}")

    @requires(requirements_of(engine))
    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        now = logprobs.detach()
        log_w = ratios.log_ratio(now, batch).sum(1, keepdim=True)  # [B, 1]
        if engine is not None:
            log_w = log_w + _log_of_sequences(engine(now, batch), batch)
        log_w = log_w.clamp(VESPO_LOG_MIN, LOG_RATIO_CLAMP)
        positive = lambda_positive + k_positive * log_w - lambda_positive * log_w.exp()
        negative = lambda_negative + k_negative * log_w - lambda_negative * log_w.exp()
        return torch.where(advantages >= 0, positive, negative).exp() * advantages * logprobs

    return surrogate


def _log_of_sequences(weight: Factor, batch: Batch) -> Float[Tensor, "B 1"] | Float[Tensor, ""]:
    """Return log Π_t c_it of weights by token [B, T], log c_i of weights by answer [B, 1] or of a number."""
    log_c = torch.as_tensor(weight).log().clamp(VESPO_LOG_MIN, LOG_RATIO_CLAMP)
    if log_c.shape != batch.loss_mask.shape:
        return log_c
    return log_c.where(batch.loss_mask, 0.0).sum(1, keepdim=True)  # [B, 1]


def dppo_tv(*, threshold: float = 0.15, ratio_max: float = 20.0) -> Surrogate:
    """S = 1[within] sg[min(ρ, ratio_max)] Â log πθ, within: the probability has moved by at most `threshold`.

    DPPO with the binary total variation |πθ - π_old| of {the token, all others} (arXiv 2602.04879). Only a move in the
    direction of Â is bounded: Â > 0 and πθ - π_old > threshold, Â < 0 and πθ - π_old < -threshold have no gradient. A
    rare token may become many times more likely, a likely one may not lose much: the opposite of a clip of the ratio.
    """

    def within(new: Float[Tensor, "B T"], old: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        return (new.exp() - old.exp()).abs() <= threshold

    return _trust_region(within, ratio_max)


def dppo_kl(*, threshold: float = 0.05, ratio_max: float = 20.0) -> Surrogate:
    """As `dppo_tv`, with the KL divergence of {the token, all others} from π_old to πθ (arXiv 2602.04879).

    KL = π_old log(π_old / πθ) + (1 - π_old) log((1 - π_old) / (1 - πθ)), exact; verl adds 1e-8 inside the logarithm.
    """

    def within(new: Float[Tensor, "B T"], old: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
        others, others_old = -new.expm1(), -old.expm1()  # 1 - π, exact also where π is nearly 1
        rest = torch.xlogy(others_old, others_old) - torch.xlogy(others_old, others)
        return old.exp() * (old - new) + rest <= threshold

    return _trust_region(within, ratio_max)


def _trust_region(
    within: Callable[[Float[Tensor, "B T"], Float[Tensor, "B T"]], Bool[Tensor, "B T"]], ratio_max: float
) -> Surrogate:
    """Return log πθ times Â and the capped ratio, except for tokens outside that Â pushes further."""

    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        new, old = logprobs.detach(), old_logprobs(logprobs, batch)
        keep = within(new, old) | torch.where(advantages > 0, new <= old, new >= old)
        return keep * log_ratio.detach().exp().clamp(max=ratio_max) * advantages * logprobs

    return surrogate


def dro(*, tau: float = 0.1) -> Surrogate:
    """S = Â log πθ - τ/2 (log ρ)²; DRO (arXiv 2405.19107), in the form of verl and Tinker: per token, without V.

    = -τ/2 (log πθ - log π_old - Â/τ)² + constant: the squared distance to a target, log π_old + Â/τ. log ρ is computed
    here, by token and without a clamp: the level of the objective is used only for its divergence.
    """

    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        distance = ratios.log_ratio(logprobs, batch, limit=math.inf)
        return logprobs * advantages - tau / 2 * distance.square()

    return surrogate


def prime_rl(
    *, threshold_low: float = 0.2, threshold_high: float = 0.2, symmetric: bool = False, pull: float = 1e-3
) -> Surrogate:
    """S = 1[within] ρ Â - pull · (log ρ)²; the losses of prime-rl, "default" and, with `symmetric`, "ipo".

    within: Â > 0 and πθ - π_old ≤ threshold_high, Â ≤ 0 and πθ - π_old ≥ -threshold_low, as in `dppo_tv`; `symmetric`
    asks for both bounds whatever the sign of Â, so that a token which has moved against Â loses its gradient too. The
    pull is that of Kimi K2.5 (arXiv 2602.02276), and acts on every token. prime-rl measures both from the policy that
    sampled: use it with `bypass`.
    """
    for name, value in (("threshold_low", threshold_low), ("threshold_high", threshold_high), ("pull", pull)):
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more, not {value}")

    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        moved = logprobs.detach().exp() - old_logprobs(logprobs, batch).exp()
        below, above = moved <= threshold_high, moved >= -threshold_low
        within = below & above if symmetric else torch.where(advantages > 0, below, above)
        distance = ratios.log_ratio(logprobs, batch, limit=math.inf)
        return (log_ratio.exp() * advantages).where(within, 0.0) - pull * distance.square()

    return surrogate


def kl_cov(*, coefficient: float = 1.0) -> Surrogate:
    """S = ρ Â - coefficient · |log ρ| on the tokens that `batch_transforms.covariant` has marked, else ρ Â, unclipped.

    KL-Cov (arXiv 2505.22617); the paper writes a KL, its code takes |log ρ|. At ρ = 1 the penalty has no gradient, so
    it has no effect in the first pass. The |log ρ| is that of the token, without a clamp.
    """

    def surrogate(
        log_ratio: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], batch: Batch
    ) -> Float[Tensor, "B T"]:
        if "covariant" not in batch.prepared and batch.totals.tokens:
            raise ValueError("the surrogate kl_cov requires the batch transform `covariant`, which marks its tokens")
        marked = batch.prepared.get("covariant", torch.zeros_like(batch.loss_mask))
        distance = ratios.log_ratio(logprobs, batch, limit=math.inf).abs()
        return log_ratio.exp() * advantages - coefficient * distance * marked

    return surrogate
