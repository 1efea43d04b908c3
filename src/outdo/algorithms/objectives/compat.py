"""The same objective in the conventions of another library. They differ in details that no paper states:

| | TRL 1.16 | verl | OpenRLHF | AReaL | outdo |
|---|---|---|---|---|---|
| log ρ of a token clamped to | no limit | ±20 | ±20 | no limit | ±20 |
| answers without a trained token, in a mean over answers | count | do not | do not | do not | do not |
| GRPO's mean of means, of PPO's clip by token | kept | over tokens | over tokens | over tokens | kept |
| the same of GSPO and of SAPO | kept | kept | kept | over tokens | kept |
| dual clip, where the clip is by token | off | 3 | off | off | off |
| k3 in the loss | free, × ρ | within 10 | within 10 | not there | d above -20 |
| other estimators of KL in the loss | free, × ρ | free | within ±10 | not there | free |
| entropy bonus | mean over tokens | as the policy term | as the policy term | not there | as the policy term |
| eps in Â = (r - μ) / (σ + eps) | 1e-4 | 1e-6 | 1e-9 | 1e-5 | 1e-6 |

d = log πθ - log π_ref. TRL was compared by running it, the others by reading their code, in 2026. Not in the table:
verl has no clamp of log ρ in Clip-Cov, KL-Cov and GMPO; it clamps GSPO's log s below 10, OpenRLHF to ±20. TRL's
experimental GMPO has k3 without ρ.
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


def no_objective(objective: ComposedObjective) -> bool:
    """Return False for every objective."""
    return False


def clips_tokens(objective: ComposedObjective) -> bool:
    """Whether it is PPO's clip on the ratio of the token, which all libraries have. Clip-Cov has a batch transform."""
    transforms = objective.batch_transform is not objectives.as_it_is
    return objective.level is token and isinstance(objective.surrogate, Clip) and not transforms


def by_token_or_gspo(objective: ComposedObjective) -> bool:
    """Whether the objective uses the ratio of the token, or GSPO's."""
    return objective.level in (token, sequence, sequence_token)


def as_it_is(divergence: Divergence) -> Divergence:
    """Return the estimator itself."""
    return divergence


def free(divergence: Divergence) -> Divergence:
    """Return the estimator without outdo's limit on k3. It overflows where πθ is far below π_ref, as the library's."""
    return _free_k3 if divergence is k3 else divergence


def _free_k3(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    d = logprobs - ref_logprobs
    return (-d).expm1() + d


def within_10(divergence: Divergence) -> Divergence:
    """Return the estimator with its value clamped to ±10. Beyond that it has no gradient."""

    @requires(**asdict(requirements_of(divergence)))
    def limited(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return divergence(logprobs, ref_logprobs).clamp(-10.0, 10.0)

    return limited


def k3_within_10(divergence: Divergence) -> Divergence:
    """Do the same with k3 alone. verl also clamps d to ±20, which has no effect: k3 is above 10 there."""
    return within_10(divergence) if divergence is k3 else divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What a library does where the papers do not say."""

    log_ratio_clamp: float  # log-ratios are clamped to ± this number
    over_tokens: Callable[[ComposedObjective], bool] = (
        no_objective  # for which objectives the mean over answers of means becomes a mean over tokens
    )
    every_row: bool = False  # answers without a trained token count in denominators
    dual: float | None = None
    divergence: Callable[[Divergence], Divergence] = as_it_is  # the library's limits on an estimator
    kl_ratio: bool | None = None  # None: it has no divergence in the loss
    entropy_over_tokens: bool = False


CONVENTIONS: dict[Library, Convention] = {
    "trl": Convention(
        log_ratio_clamp=math.inf, every_row=True, divergence=free, kl_ratio=True, entropy_over_tokens=True
    ),
    "verl": Convention(
        log_ratio_clamp=LOG_RATIO_CLAMP, over_tokens=clips_tokens, dual=3.0, divergence=k3_within_10, kl_ratio=False
    ),
    "openrlhf": Convention(
        log_ratio_clamp=LOG_RATIO_CLAMP, over_tokens=clips_tokens, divergence=within_10, kl_ratio=False
    ),
    "areal": Convention(log_ratio_clamp=math.inf, over_tokens=by_token_or_gspo),
}


def compat(library: Library, objective: ComposedObjective) -> ComposedObjective:
    """Return the objective as `library` computes it: see the table above. Everything else stays the same."""
    convention = CONVENTIONS[library]
    weight = objective.weight
    if weight is sequence_mean and convention.over_tokens(objective):
        weight = token_mean
    if convention.every_row and weight is not token_mean:
        weight = every_row(weight)
    return replace(
        objective,
        weight=weight,
        surrogate=_with_dual(objective, convention.dual),
        log_ratio_clamp=convention.log_ratio_clamp,
        divergence=convention.divergence(objective.divergence),
        kl_ratio=objective.kl_ratio if convention.kl_ratio is None else convention.kl_ratio,
        entropy_weight=token_mean if convention.entropy_over_tokens else objective.entropy_weight,
    )


def _with_dual(objective: ComposedObjective, dual: float | None) -> Surrogate:
    """Return the surrogate; a clip by token without a dual clip gets this one."""
    surrogate = objective.surrogate
    if objective.level is token and isinstance(surrogate, Clip) and surrogate.dual is None:
        return replace(surrogate, dual=dual)
    return surrogate
