"""The same objective in the conventions of another library. They differ in details that no paper states:

| | TRL 1.16 | verl | OpenRLHF | AReaL | outdo |
|---|---|---|---|---|---|
| log ρ of a token clamped to | no limit | ±20 | ±20 | no limit | ±20 |
| the same in GSPO, before the mean over the answer | no limit | no limit | no limit | no limit | ±20 |
| log s of an answer in GSPO | no limit | at most 10 | no limit | no limit | follows from the tokens' |
| answers without a trained token, in a mean over answers | count | do not | do not | do not | do not |
| GRPO's mean of means, of PPO's clip by token | kept | over tokens | over tokens | over tokens | kept |
| the same of GSPO and of SAPO | kept | kept | kept | over tokens | kept |
| dual clip, where the clip is by token | off | 3 | off | off | off |
| k3 in the loss | free, × ρ | within 10 | within 10 | not there | d above -20 |
| other estimators of KL in the loss | free, × ρ | free | within ±10 | not there | free |
| mean of the KL in the loss | as the policy term | as the policy term | over tokens | not there | as the policy term |
| entropy bonus | mean over tokens | as the policy term | mean over tokens | not there | as the policy term |
| eps in Â = (r - μ) / (σ + eps) | 1e-4 | 1e-6 | 1e-9 | 1e-5 | 1e-6 |
| variance of a whitened Â | unbiased | unbiased | population | unbiased | unbiased |

d = log πθ - log π_ref. TRL was compared by running it, the others by reading their code, in 2026. Not in the table:
verl clamps no log ρ in Clip-Cov, KL-Cov and GMPO, has no dual clip in Clip-Cov, and counts answers without a trained
token in GMPO's mean; its GSPO has a mean over tokens by default since 0.9. In TRL's RLOO log W has no limit; TRL's
experimental GMPO has k3 without ρ.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.batch_transforms import drop_covariant, mark_covariant
from outdo.algorithms.objectives.divergences import Divergence, k3
from outdo.algorithms.objectives.ratios import (
    LOG_RATIO_CLAMP,
    Level,
    sequence,
    sequence_product,
    sequence_token,
    token,
)
from outdo.algorithms.objectives.surrogates import Clip, Surrogate, geometric_mean
from outdo.algorithms.objectives.weights import every_row, sequence_mean, token_mean
from outdo.algorithms.requirements import requirements_of, requires

Library = Literal["trl", "verl", "openrlhf", "areal"]
Rule = Callable[[ComposedObjective], bool]


# --------------------------------------------------------------------------------------------- kinds of objectives


def is_made_by(piece: object, function: Callable[..., object]) -> bool:
    """Whether a piece is `function` with its options filled in."""
    return isinstance(piece, functools.partial) and piece.func is function


def no_objective(objective: ComposedObjective) -> bool:
    """Return False for every objective."""
    return False


def any_objective(objective: ComposedObjective) -> bool:
    """Return True for every objective."""
    return True


def is_gmpo(objective: ComposedObjective) -> bool:
    """Whether its surrogate is GMPO's."""
    return is_made_by(objective.surrogate, geometric_mean)


def by_token(objective: ComposedObjective) -> bool:
    """Whether the objective uses the ratio of the token."""
    return objective.level is token


def clips_tokens(objective: ComposedObjective) -> bool:
    """Whether it is PPO's clip on the ratio of the token, which all libraries have, and not Clip-Cov."""
    clip_cov = is_made_by(objective.batch_transform, drop_covariant)
    return by_token(objective) and isinstance(objective.surrogate, Clip) and not clip_cov


def by_token_or_gspo(objective: ComposedObjective) -> bool:
    """Whether the objective uses the ratio of the token, or GSPO's."""
    return objective.level in (token, sequence, sequence_token)


def clamped_in_verl(objective: ComposedObjective) -> bool:
    """Whether verl clamps the tokens' log-ratios: nowhere in GSPO, GMPO, Clip-Cov and KL-Cov."""
    covariance = any(is_made_by(objective.batch_transform, transform) for transform in (drop_covariant, mark_covariant))
    return by_token(objective) and not covariance and not is_gmpo(objective)


# ------------------------------------------------------------------------------------------------- limits on pieces


def level_as_it_is(level: Level) -> Level:
    """Return the level itself."""
    return level


def gspo_below_10(level: Level) -> Level:
    """Return the level; for GSPO's with log s clamped below 10, where it has no gradient."""
    return functools.partial(_below_10, level=level) if level in (sequence, sequence_token) else level


def _below_10(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, level: Level) -> Float[Tensor, "B T"]:
    return level(log_ratio, loss_mask).clamp(max=10.0)


def free_product(level: Level) -> Level:
    """Return the level; `sequence_product` without outdo's limit on log W. It overflows as the library's does."""
    return _free_product if level is sequence_product else level


def _free_product(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    return log_ratio.sum(1, keepdim=True) * loss_mask


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

    @requires(requirements_of(divergence))
    def limited(logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return divergence(logprobs, ref_logprobs).clamp(-10.0, 10.0)

    return limited


def k3_within_10(divergence: Divergence) -> Divergence:
    """Do the same with k3 alone. verl also clamps d to ±20, which has no effect: k3 is above 10 there."""
    return within_10(divergence) if divergence is k3 else divergence


# ---------------------------------------------------------------------------------------------------- the libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What a library does where the papers do not say."""

    clamped: Rule = no_objective  # for which objectives a token's log-ratio is clamped to ±20
    level: Callable[[Level], Level] = level_as_it_is  # the library's limits on an answer's ratio
    over_tokens: Rule = no_objective  # for which the mean over answers of means becomes a mean over tokens
    every_row: Rule = no_objective  # for which answers without a trained token count in denominators
    dual: float | None = None  # of PPO's clip by token
    divergence: Callable[[Divergence], Divergence] = as_it_is  # the library's limits on an estimator
    kl_ratio: bool | None = None  # None: it has no divergence in the loss
    kl_over_tokens: bool = False
    entropy_over_tokens: bool = False
    advantage: Mapping[str, float] = field(default_factory=dict)  # options that its advantages have by default


CONVENTIONS: dict[Library, Convention] = {
    "trl": Convention(
        level=free_product,
        every_row=any_objective,
        divergence=free,
        kl_ratio=True,
        entropy_over_tokens=True,
        advantage={"eps": 1e-4},
    ),
    "verl": Convention(
        clamped=clamped_in_verl,
        level=gspo_below_10,
        over_tokens=clips_tokens,
        every_row=is_gmpo,
        dual=3.0,
        divergence=k3_within_10,
        kl_ratio=False,
        advantage={"eps": 1e-6},
    ),
    "openrlhf": Convention(
        clamped=by_token,
        over_tokens=clips_tokens,
        divergence=within_10,
        kl_ratio=False,
        kl_over_tokens=True,
        entropy_over_tokens=True,
        advantage={"eps": 1e-9, "ddof": 0},
    ),
    "areal": Convention(over_tokens=by_token_or_gspo, advantage={"eps": 1e-5}),
}


def compat(library: Library, objective: ComposedObjective) -> ComposedObjective:
    """Return the objective as `library` computes it: see the table above. Everything else stays the same."""
    convention = CONVENTIONS[library]
    weight = objective.weight
    if weight is sequence_mean and convention.over_tokens(objective):
        weight = token_mean
    if convention.every_row(objective) and weight is not token_mean:
        weight = every_row(weight)
    level = convention.level(objective.level)
    return replace(
        objective,
        level=level,
        kl_level=level,  # TRL multiplies the KL by the ratio that it clips; the others have no ratio there
        weight=weight,
        surrogate=_with_dual(objective, convention.dual),
        log_ratio_clamp=LOG_RATIO_CLAMP if convention.clamped(objective) else math.inf,
        divergence=convention.divergence(objective.divergence),
        kl_ratio=objective.kl_ratio if convention.kl_ratio is None else convention.kl_ratio,
        divergence_weight=token_mean if convention.kl_over_tokens else objective.divergence_weight,
        entropy_weight=token_mean if convention.entropy_over_tokens else objective.entropy_weight,
    )


def _with_dual(objective: ComposedObjective, dual: float | None) -> Surrogate:
    """Return the surrogate; PPO's clip by token gets this dual clip if it has none."""
    surrogate = objective.surrogate
    if clips_tokens(objective) and isinstance(surrogate, Clip) and surrogate.dual is None:
        return replace(surrogate, dual=dual)
    return surrogate
