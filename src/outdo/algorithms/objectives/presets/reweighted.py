"""No token is clipped away at an edge: its gradient is weighed with a bounded number, gated, or pulled back."""

from outdo.algorithms.objectives import surrogates
from outdo.algorithms.objectives.base import Formula
from outdo.algorithms.objectives.ratios import token
from outdo.algorithms.objectives.weights import sequence_mean, token_mean


def cispo(*, ratio_min: float = 0.0, ratio_max: float = 5.0) -> Formula:
    """Clipped importance-sampling weights; CISPO, MiniMax-M1 (arXiv 2506.13585) equations 4 and 5.

        J = 1/Σ_i|o_i| Σ_i Σ_t sg[clip(ρ_it, ratio_min, ratio_max)] Â_i log πθ(o_it)

    Published with Â = group_standardised. The paper tunes its upper bound and does not print it; 5 is ScaleRL's
    (arXiv 2510.13786).
    What differs: both bounds are those of the ratio itself, not distances from 1. TRL has no lower bound, and its upper
    one, `epsilon_high`, is 0.2 unless set: a fifth of the gradient. verl clips to [1 - ε, 1 + ε].
    """
    return Formula(level=token, surrogate=surrogates.cispo(ratio_min=ratio_min, ratio_max=ratio_max), weight=token_mean)


def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Formula:
    """Soft Adaptive Policy Optimization; SAPO (arXiv 2511.20347).

        J = 1/B Σ_i 1/|o_i| Σ_t 4/τ σ(τ (ρ_it - 1)) Â_i,   τ = tau_positive if Â_i > 0 else tau_negative

    Published with Â = group_standardised.
    What differs: nothing known. TRL rounds the temperatures to float32; AReaL takes a mean over tokens.
    """
    return Formula(
        level=token,
        surrogate=surrogates.soft_gate(tau_positive=tau_positive, tau_negative=tau_negative),
        weight=sequence_mean,
    )


def vespo(
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
) -> Formula:
    """VESPO: the answer's whole ratio, through a gamma-shaped window, weighs its gradient; arXiv 2602.10693.

        J = 1/Σ_i|o_i| Σ_i Σ_t sg[W_i^k e^(λ (1 - W_i))] Â_i log πθ(o_it),   W_i = Π_t ρ_it

    (k, λ) is (k_positive, lambda_positive) where Â_i ≥ 0, else the other pair. Published with Â = group_standardised.
    What differs: log W is kept within [log 1e-8, 20], as in the authors' code and TRL. TRL multiplies its weight for
    the engine into W before the window, which is `surrogates.vespo(engine=...)`; a correction multiplies the surrogate
    after it. W is the surrogate's own: the level is that of a divergence, should there be one.
    """
    return Formula(
        level=token,
        surrogate=surrogates.vespo(
            k_positive=k_positive,
            lambda_positive=lambda_positive,
            k_negative=k_negative,
            lambda_negative=lambda_negative,
        ),
        weight=token_mean,
    )


def dppo_tv(*, threshold: float = 0.15) -> Formula:
    """Divergence PPO, binary total variation; DPPO (arXiv 2602.04879).

        J = 1/Σ_i|o_i| Σ_i Σ_t M_it sg[min(ρ_it, 20)] Â_it log πθ(o_it)
        M_it = 0 if Â_it > 0 and πθ - π_old > threshold, or Â_it < 0 and πθ - π_old < -threshold, else 1

    The threshold is that of the authors' runs. The weight on log πθ has the gradient of ρ Â up to its cap.
    What differs: the paper measures the move from the policy that sampled, as the engine reports it; here it is
    measured from π_old by the trainer, as in verl. verl's example for it takes Â = group_centred, a sum over tokens
    divided by a constant, and a cap of 10,000. prime-rl's default is a relative of this with a quadratic pull.
    """
    return Formula(level=token, surrogate=surrogates.trust_region_tv(threshold=threshold), weight=token_mean)


def dppo_kl(*, threshold: float = 0.05) -> Formula:
    """Divergence PPO, binary KL; DPPO (arXiv 2602.04879).

        J = 1/Σ_i|o_i| Σ_i Σ_t M_it sg[min(ρ_it, 20)] Â_it log πθ(o_it)
        M_it = 0 if KL_it > threshold and πθ has moved the way Â_it pushes, else 1
        KL_it = π_old log(π_old / πθ) + (1 - π_old) log((1 - π_old) / (1 - πθ))

    What differs: as for `dppo_tv`; verl adds 1e-8 inside the second logarithm.
    """
    return Formula(level=token, surrogate=surrogates.trust_region_kl(threshold=threshold), weight=token_mean)


def dro(*, tau: float = 0.1) -> Formula:
    """Direct Reward Optimisation, per token; DRO (arXiv 2405.19107).

        J = 1/Σ_i|o_i| Σ_i Σ_t { Â_it log πθ(o_it) - tau/2 (log ρ_it)² }

    τ holds the policy at π_old, as β would at a reference; J is largest where π_old is tilted by e^(Â/τ).
    Use it with Â = group_centred.
    What differs: the paper squares one error per answer and learns the baseline V with the policy; this is the form
    that verl and Tinker have, with any Â for r - V, and the paper's τ under the name `beta`. TRL has none.
    """
    return Formula(level=token, surrogate=surrogates.squared(tau=tau), weight=token_mean)
