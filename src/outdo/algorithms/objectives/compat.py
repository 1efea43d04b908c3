"""The same objective in the conventions of another library: where the peers differ without saying so.

| | TRL 1.16 | verl | OpenRLHF | AReaL | outdo |
|---|---|---|---|---|---|
| log ρ of a token kept within | no limit | ±20 | ±20 | no limit | ±20 |
| answers without a trained token, in a mean over answers | count | do not | do not | do not | do not |
| GRPO's mean of means, of PPO's clip by token | kept | over tokens | over tokens | over tokens | kept |
| the same of GSPO and of SAPO | kept | kept | kept | over tokens | kept |
| dual clip, where the clip is by token | off | 3 | off | off | off |
| k3 in the loss | free, × ρ | within 10 | within 10 | not there | d above -20 |
| other estimators of KL in the loss | free, × ρ | free | within ±10 | not there | free |
| entropy bonus | mean over tokens | as the policy term | as the policy term | not there | as the policy term |
| eps in Â = (r - μ) / (σ + eps) | 1e-4 | 1e-6 | 1e-9 | 1e-5 | 1e-6 |

d = log πθ - log π_ref. TRL was compared live, the others were read, in 2026. What no row says: verl leaves the limit on
log ρ out of Clip-Cov, KL-Cov and GMPO; GSPO's log s it keeps below 10, OpenRLHF within ±20. TRL's experimental GMPO has
k3 without ρ.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.objectives import base as objectives
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import Divergence, k3
from outdo.algorithms.objectives.ratios import LOG_RATIO_CLAMP, sequence, sequence_token, token
from outdo.algorithms.objectives.surrogates import Clip, Surrogate
from outdo.algorithms.objectives.weights import every_row, sequence_mean, token_mean
from outdo.algorithms.requirements import requirements_of, requires

Library = Literal["trl", "verl", "openrlhf", "areal"]


def nothing(objective: ComposedObjective) -> bool:
    """None."""
    return False


def clips_tokens(objective: ComposedObjective) -> bool:
    """PPO's clip on the ratio of the token, the loss that all of them have; Clip-Cov, which prepares, is another."""
    prepares = objective.batch_transform is not objectives.as_it_is
    return objective.level is token and isinstance(objective.surrogate, Clip) and not prepares


def by_token_or_gspo(objective: ComposedObjective) -> bool:
    """Whatever is done with the ratio of the token, or with GSPO's."""
    return objective.level in (token, sequence, sequence_token)


def as_it_is(divergence: Divergence) -> Divergence:
    """The estimator."""
    return divergence


def free(divergence: Divergence) -> Divergence:
    """The estimator without outdo's limit on k3: it overflows where πθ is far below π_ref, as the peer's does."""
    return _free_k3 if divergence is k3 else divergence


def _free_k3(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    d = logprobs - ref_logprobs
    return (-d).expm1() + d


def within_10(divergence: Divergence) -> Divergence:
    """The estimator, what it gives kept within ±10: beyond, it pulls no more."""

    @requires(**asdict(requirements_of(divergence)))
    def limited(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return divergence(logprobs, ref_logprobs).clamp(-10.0, 10.0)

    return limited


def k3_within_10(divergence: Divergence) -> Divergence:
    """The same of k3 alone. That verl also keeps d within ±20 does not show: k3 is beyond 10 there."""
    return within_10(divergence) if divergence is k3 else divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What a peer does where the papers are silent."""

    limit: float  # log-ratios are kept within ±limit
    over_tokens: Callable[[ComposedObjective], bool] = (
        nothing  # whose mean over answers of means becomes one over tokens
    )
    every_row: bool = False  # answers without a trained token count in denominators
    dual: float | None = None
    divergence: Callable[[Divergence], Divergence] = as_it_is  # its own limits on an estimator
    kl_ratio: bool | None = None  # None: it has no divergence in the loss
    entropy_over_tokens: bool = False


CONVENTIONS: dict[Library, Convention] = {
    "trl": Convention(limit=math.inf, every_row=True, divergence=free, kl_ratio=True, entropy_over_tokens=True),
    "verl": Convention(
        limit=LOG_RATIO_CLAMP, over_tokens=clips_tokens, dual=3.0, divergence=k3_within_10, kl_ratio=False
    ),
    "openrlhf": Convention(limit=LOG_RATIO_CLAMP, over_tokens=clips_tokens, divergence=within_10, kl_ratio=False),
    "areal": Convention(limit=math.inf, over_tokens=by_token_or_gspo),
}


def compat(peer: Library, objective: ComposedObjective) -> ComposedObjective:
    """The objective as `peer` would compute it: see the table above. What the peer has no rule for stays."""
    convention = CONVENTIONS[peer]
    weight = objective.weight
    if weight is sequence_mean and convention.over_tokens(objective):
        weight = token_mean
    if convention.every_row and weight is not token_mean:
        weight = every_row(weight)
    return replace(
        objective,
        weight=weight,
        surrogate=_with_dual(objective, convention.dual),
        log_ratio_clamp=convention.limit,
        divergence=convention.divergence(objective.divergence),
        kl_ratio=objective.kl_ratio if convention.kl_ratio is None else convention.kl_ratio,
        entropy_weight=token_mean if convention.entropy_over_tokens else objective.entropy_weight,
    )


def _with_dual(objective: ComposedObjective, dual: float | None) -> Surrogate:
    """The surrogate; a clip by token that has no dual clip gets this one."""
    surrogate = objective.surrogate
    if objective.level is token and isinstance(surrogate, Clip) and surrogate.dual is None:
        return replace(surrogate, dual=dual)
    return surrogate
