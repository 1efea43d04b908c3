"""The named methods. Each is one expression of named pieces; its docstring says whence it is and what differs."""

from outdo.objectives.divergences import k3
from outdo.objectives.objective import Formula
from outdo.objectives.ratios import token
from outdo.objectives.surrogates import clip, log_likelihood
from outdo.objectives.weights import sequence_mean, token_mean


def grpo(*, clip_low: float = 0.2, clip_high: float = 0.2, beta: float = 0.04) -> Formula:
    """Group Relative Policy Optimization; DeepSeekMath (arXiv 2402.03300) equation 3.

        J = 1/G Σ_i 1/|o_i| Σ_t { min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it] - β k3(πθ, π_ref) }

    The paper's ε is both `clip_low` and `clip_high`; β is the paper's 0.04 and needs a reference, 0 needs none.
    What differs from the paper: 1/G is taken over all the answers of the optimiser step (the same when every group is
    whole); log-ratios are kept within ±20. TRL's default is not this but `loss_type` "dapo" with β = 0, and where β is
    not 0 it multiplies k3 by the ratio (`use_bias_correction_kl`).
    """
    return Formula(
        level=token,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        weight=sequence_mean,
    )


def likelihood() -> Formula:
    """Supervised fine-tuning: J = Σ_t log πθ(o_t) / Σ |o|, over the tokens of the answers, with Â = 1."""
    return Formula(surrogate=log_likelihood, weight=token_mean)
