"""The named methods. Each is one expression of named pieces; its docstring has its equation, its source and
differences.

There are three parts: the ratio is clipped; the gradient of log πθ is multiplied by a bounded number; the plain policy
gradient, and likelihood. `dataclasses.replace` changes everything for which a preset has no option:
`dataclasses.replace(dapo(), weight=sequence_mean, beta=0.01, kl_ratio=True)`.

In the equations i counts answers and t tokens, Σ_i runs over the B answers of the optimiser step that have a trained
token, and ρ_it = πθ(o_it) / π_old(o_it). Â is computed from rewards by an advantage; each docstring names the published
one.
"""

from outdo.algorithms import marks
from outdo.algorithms.objectives import surrogates
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.batch_transforms import covariant, without_covariant
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.objectives.ratios import sequence, sequence_product, sequence_token, token
from outdo.algorithms.objectives.surrogates import clip, log_likelihood, nothing, unclipped
from outdo.algorithms.objectives.weights import constant, sequence_mean, sequence_sum, token_mean

# ------------------------------------------------------------------------------------------------- the ratio is clipped
# PPO's clip and its descendants: the ratio of the token, or of the whole answer, stays near 1.
#
# A clip has an effect only where a batch is used for more than one optimiser step: at the first, every ratio is 1.


@marks.objective()
def grpo(*, clip_low: float = 0.2, clip_high: float = 0.2, beta: float = 0.04) -> ComposedObjective:
    """Group Relative Policy Optimization; DeepSeekMath (arXiv 2402.03300) equation 3.

        J = 1/G Σ_i 1/|o_i| Σ_t { min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it] - β k3(πθ, π_ref) }

    The paper's ε is both `clip_low` and `clip_high`; β is the paper's 0.04 and needs a reference, 0 needs none.
    Published with Â = group_standardised.
    What differs from the paper: 1/G is taken over all the answers of the optimiser step (the same when every group is
    whole); log-ratios are clamped to ±20. TRL's default is not this but `loss_type` "dapo" with β = 0, and where β is
    not 0 it multiplies k3 by the ratio (`use_bias_correction_kl`).
    """
    return ComposedObjective(
        level=token,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        weight=sequence_mean,
    )


@marks.objective()
def grpo_clip(*, clip_low: float = 0.2, clip_high: float = 0.2) -> ComposedObjective:
    """GRPO-Clip without a reference; CS336 (spring 2025, assignment 5) Algorithm 3.

        J = 1/B Σ_i 1/|o_i| Σ_t min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i]

    `grpo` with β = 0, under the name that the course uses. Published with Â = group_standardised.
    What differs: the course divides by the gradient accumulation steps, here the mean is over the optimiser step.
    """
    return ComposedObjective(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=sequence_mean)


@marks.objective(published_with="gae")
def ppo(*, clip_low: float = 0.2, clip_high: float = 0.2, dual: float | None = None) -> ComposedObjective:
    """Proximal Policy Optimization, its clipped surrogate; arXiv 1707.06347 equation 7.

        J = 1/Σ_i|o_i| Σ_i Σ_t min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it]

    with, if `dual` (c) is set, max(that, c Â_it) where Â_it < 0 (arXiv 1912.09729). Published with Â = gae.
    What differs: the value function is trained separately, by its own optimiser, so c_1 and the value loss of equation
    9 are not here; a KL penalty is part of the reward. verl has dual = 3 by default, OpenRLHF
    none; TRL 1.16 has no PPO with a value model.
    """
    return ComposedObjective(level=token, surrogate=clip(low=clip_low, high=clip_high, dual=dual), weight=token_mean)


@marks.objective(published_with="group_centred")
def dr_grpo(*, length: int, clip_low: float = 0.2, clip_high: float = 0.2) -> ComposedObjective:
    """Dr. GRPO, GRPO done right; arXiv 2503.20783.

        J = 1/B Σ_i 1/length Σ_t min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i]

    `length` is the maximum length of an answer, in tokens. Published with Â = group_centred, and without a KL.
    What differs: TRL's "dr_grpo" divides by σ unless `scale_rewards` is switched off as well, and counts
    answers without a trained token in B; verl's divides by the padded width of the batch unless given a number.
    """
    return ComposedObjective(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=constant(length=length))


@marks.objective()
def dapo(*, clip_low: float = 0.2, clip_high: float = 0.28) -> ComposedObjective:
    """Decoupled clip and dynamic sampling policy optimisation; DAPO (arXiv 2503.14476) equation 8.

        J = 1/Σ_i|o_i| Σ_i Σ_t min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i]

    Published with Â = group_standardised. This is the paper's objective; its dynamic sampling, its soft penalty for
    long answers and its filter for truncated ones are parts of the rollout, the reward and the advantage.
    What differs: the mean is over all groups of the optimiser step, the paper's over one. TRL counts the tokens of the
    whole generation and rescales them, which is not the same where lengths differ between accumulation windows.
    """
    return ComposedObjective(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=token_mean)


@marks.objective()
def bnpo(*, clip_low: float = 0.2, clip_high: float = 0.2, beta: float = 0.0) -> ComposedObjective:
    """TRL's `loss_type` "bnpo": a mean over the tokens of the current batch.

        J = 1/Σ_i|o_i| Σ_i Σ_t { min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i] - β ρ_it k3(πθ, π_ref) }

    Published with Â = group_standardised.
    What differs: TRL takes the mean over each micro-batch and averages those means, so its gradient depends on how
    the batch was split; here the tokens are those of the optimiser step, which for one micro-batch is the same.
    """
    return ComposedObjective(
        level=token,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=token_mean,
    )


@marks.objective()
def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, beta: float = 0.0) -> ComposedObjective:
    """Group Sequence Policy Optimization; arXiv 2507.18071 equations 5 and 7.

        J = 1/B Σ_i { min[s_i Â_i, clip(s_i, 1 - clip_low, 1 + clip_high) Â_i] - β 1/|o_i| Σ_t ρ_it k3(πθ, π_ref) }
        s_i = exp(1/|o_i| Σ_t log ρ_it)

    The bounds are the paper's (section 5.1). Published with Â = group_standardised; it leaves the KL out.
    What differs: nothing known. TRL gives the same with `importance_sampling_level` "sequence" and `loss_type` "grpo"
    only, and multiplies the KL by s_i, with which its gradient is not that of the reverse KL; verl has `gspo_token`
    under this name, with log s_it clamped below 10; AReaL takes a mean over tokens.
    """
    return ComposedObjective(
        level=sequence,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=sequence_mean,
    )


@marks.objective()
def gspo_token(*, clip_low: float = 3e-4, clip_high: float = 4e-4, beta: float = 0.0) -> ComposedObjective:
    """GSPO with an advantage per token; arXiv 2507.18071 section 4.3.

        J = 1/B Σ_i 1/|o_i| Σ_t { min[s_it Â_it, clip(s_it, 1 - clip_low, 1 + clip_high) Â_it] - β ρ_it k3(πθ, π_ref) }
        s_it = sg[s_i] πθ(o_it) / sg[πθ(o_it)]

    Where all tokens of an answer have one Â, value and gradient are those of `gspo`.
    What differs: TRL 1.16 has dropped it; verl calls it "gspo".
    """
    return ComposedObjective(
        level=sequence_token,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=sequence_mean,
    )


@marks.objective()
def luspo(*, clip_low: float = 2e-3, clip_high: float = 2.5e-3) -> ComposedObjective:
    """Length-unbiased sequence policy optimisation; LUSPO (arXiv 2602.05261).

        J = 1/B Σ_i |o_i| min[s_i Â_i, clip(s_i, 1 - clip_low, 1 + clip_high) Â_i]

    `gspo` times |o_i|: long answers count by their tokens again. Published with Â = group_standardised.
    What differs: TRL's "luspo" counts answers without a trained token in B, and is this only with
    `importance_sampling_level` "sequence", which is not its default.
    """
    return ComposedObjective(level=sequence, surrogate=clip(low=clip_low, high=clip_high), weight=sequence_sum)


@marks.objective()
def gmpo(*, clip_low: float = 0.4, clip_high: float = 0.4, beta: float = 0.0) -> ComposedObjective:
    """Geometric-Mean Policy Optimization; GMPO (arXiv 2507.20673).

        J = 1/B Σ_i { Â_i exp(1/|o_i| Σ_t c_it) - β 1/|o_i| Σ_t ρ_it k3(πθ, π_ref) }
        c_it = min(d, clip(d, -clip_low, clip_high)) if Â_i > 0 else max(d, clip(d, -clip_low, clip_high))
        d    = log ρ_it

    Published with Â = group_standardised, and with both bounds equal to 0.4.
    What differs: TRL's experimental GMPO has the plain k3, and adds -Â_i to the value of the loss (not to its gradient)
    for an answer without a trained token; verl divides by |o_i| + 1e-8.
    """
    return ComposedObjective(
        level=token,
        surrogate=surrogates.gmpo(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=sequence_mean,
    )


@marks.objective(published_with="leave_one_out")
def rloo_clip(*, clip_low: float = 0.2, clip_high: float = 0.2) -> ComposedObjective:
    """RLOO in the form of TRL 1.16: PPO's clip on the ratio of the whole answer.

        J = 1/B Σ_i min[W_i Â_i, clip(W_i, 1 - clip_low, 1 + clip_high) Â_i],   W_i = Π_t ρ_it

    TRL's Â is leave_one_out. For the paper's own objective see `rloo`, of which this is the gradient at W = 1.
    What differs: log W is clamped to ±20; TRL counts answers without a trained token in B. A product of ratios leaves
    the window after two tenths of a nat, however long the answer: long answers are clipped almost at once.
    """
    return ComposedObjective(level=sequence_product, surrogate=clip(low=clip_low, high=clip_high), weight=sequence_mean)


@marks.objective()
def clip_cov(
    *,
    clip_low: float = 1.0,
    clip_high: float = 1.0,
    share: float = 0.0002,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    seed: int = 0,
) -> ComposedObjective:
    """Clip-Cov: leave out a few tokens that would reduce entropy; arXiv 2505.22617.

        J = 1/Σ_i|o_i| Σ_i Σ_t 1[it not drawn] min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it]

    `share` of the tokens are drawn at random, among those with cov_low < (Â - mean Â)(log π - mean log π) < cov_high.
    The clip at [0, 2] and the bounds are those of the authors' runs. Published with Â = group_standardised.
    What differs: the draw is made once per batch, with π_old; the authors and verl make it anew in every micro-batch
    with πθ, among tokens that the clip does not stop. See `batch_transforms.without_covariant`.
    """
    return ComposedObjective(
        level=token,
        surrogate=clip(low=clip_low, high=clip_high),
        weight=token_mean,
        batch_transform=without_covariant(share=share, low=cov_low, high=cov_high, seed=seed),
    )


@marks.objective()
def kl_cov(*, percent: float = 0.2, coefficient: float = 1.0) -> ComposedObjective:
    """KL-Cov: hold the tokens that would reduce entropy most at π_old; arXiv 2505.22617.

        J = 1/Σ_i|o_i| Σ_i Σ_t { ρ_it Â_it - coefficient · 1[it marked] |log ρ_it| }

    The `percent` of tokens with the largest (Â - mean Â)(log π - mean log π) are marked. There is no clip. Published
    with Â = group_standardised.
    What differs: the marks are made once per batch, with π_old; the authors and verl make them anew in every
    micro-batch with πθ. verl's `kl_cov_ratio` is a share (0.0002 for 0.02 %), and its configured coefficient 0.1.
    """
    return ComposedObjective(
        level=token,
        surrogate=surrogates.kl_cov(coefficient=coefficient),
        weight=token_mean,
        batch_transform=covariant(percent=percent),
    )


# ------------------------------------------------------------------------------------------- the gradient is reweighted
# No token is clipped at an edge: its gradient is multiplied by a bounded number, reduced smoothly, or pulled back.


@marks.objective()
def cispo(*, ratio_min: float = 0.0, ratio_max: float = 5.0) -> ComposedObjective:
    """Clipped importance-sampling weights; CISPO, MiniMax-M1 (arXiv 2506.13585) equations 4 and 5.

        J = 1/Σ_i|o_i| Σ_i Σ_t sg[clip(ρ_it, ratio_min, ratio_max)] Â_i log πθ(o_it)

    Published with Â = group_standardised. The paper tunes its upper bound and does not print it; 5 is ScaleRL's
    (arXiv 2510.13786).
    What differs: both bounds are those of the ratio itself, not distances from 1. TRL has no lower bound, and its upper
    one, `epsilon_high`, is 0.2 unless set: a fifth of the gradient. verl clips to [1 - ε, 1 + ε].
    """
    return ComposedObjective(
        level=token, surrogate=surrogates.cispo(ratio_min=ratio_min, ratio_max=ratio_max), weight=token_mean
    )


@marks.objective()
def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05) -> ComposedObjective:
    """Soft Adaptive Policy Optimization; SAPO (arXiv 2511.20347).

        J = 1/B Σ_i 1/|o_i| Σ_t 4/τ σ(τ (ρ_it - 1)) Â_i,   τ = tau_positive if Â_i > 0 else tau_negative

    Published with Â = group_standardised.
    What differs: nothing known. TRL rounds the temperatures to float32; AReaL takes a mean over tokens.
    """
    return ComposedObjective(
        level=token,
        surrogate=surrogates.sapo(tau_positive=tau_positive, tau_negative=tau_negative),
        weight=sequence_mean,
    )


@marks.objective()
def vespo(
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
) -> ComposedObjective:
    """VESPO: the answer's whole ratio, through a gamma-shaped window, multiplies its gradient; arXiv 2602.10693.

        J = 1/Σ_i|o_i| Σ_i Σ_t sg[W_i^k e^(λ (1 - W_i))] Â_i log πθ(o_it),   W_i = Π_t ρ_it

    (k, λ) is (k_positive, lambda_positive) where Â_i ≥ 0, else the other pair. Published with Â = group_standardised.
    What differs: log W is clamped to [log 1e-8, 20], as in the authors' code and TRL. TRL multiplies its weight for
    the engine into W before the window, which is `surrogates.vespo(engine=...)`; a correction multiplies the surrogate
    after it. The surrogate computes W itself: the level is used only for a divergence, if there is one.
    """
    return ComposedObjective(
        level=token,
        surrogate=surrogates.vespo(
            k_positive=k_positive,
            lambda_positive=lambda_positive,
            k_negative=k_negative,
            lambda_negative=lambda_negative,
        ),
        weight=token_mean,
    )


@marks.objective()
def dppo_tv(*, threshold: float = 0.15) -> ComposedObjective:
    """Divergence PPO, binary total variation; DPPO (arXiv 2602.04879).

        J = 1/Σ_i|o_i| Σ_i Σ_t M_it sg[min(ρ_it, 20)] Â_it log πθ(o_it)
        M_it = 0 if Â_it > 0 and πθ - π_old > threshold, or Â_it < 0 and πθ - π_old < -threshold, else 1

    The threshold is that of the authors' runs. The weight on log πθ has the gradient of ρ Â up to its cap.
    What differs: the paper measures the move from the policy that sampled, as the engine reports it; here it is
    measured from π_old by the trainer, as in verl. verl's example for it takes Â = group_centred, a sum over tokens
    divided by a constant, and a cap of 10,000. prime-rl's default is `prime_rl`, which has a quadratic pull.
    """
    return ComposedObjective(level=token, surrogate=surrogates.dppo_tv(threshold=threshold), weight=token_mean)


@marks.objective()
def dppo_kl(*, threshold: float = 0.05) -> ComposedObjective:
    """Divergence PPO, binary KL; DPPO (arXiv 2602.04879).

        J = 1/Σ_i|o_i| Σ_i Σ_t M_it sg[min(ρ_it, 20)] Â_it log πθ(o_it)
        M_it = 0 if KL_it > threshold and πθ has moved in the direction of Â_it, else 1
        KL_it = π_old log(π_old / πθ) + (1 - π_old) log((1 - π_old) / (1 - πθ))

    What differs: as for `dppo_tv`; verl adds 1e-8 inside the second logarithm.
    """
    return ComposedObjective(level=token, surrogate=surrogates.dppo_kl(threshold=threshold), weight=token_mean)


@marks.objective(published_with="group_centred")
def dro(*, tau: float = 0.1) -> ComposedObjective:
    """Direct Reward Optimisation, per token; DRO (arXiv 2405.19107).

        J = 1/Σ_i|o_i| Σ_i Σ_t { Â_it log πθ(o_it) - tau/2 (log ρ_it)² }

    τ holds the policy at π_old, as β would at a reference; J is largest where π_old is tilted by e^(Â/τ).
    Use it with Â = group_centred.
    What differs: the paper squares one error per answer and learns the baseline V with the policy; this is the form
    of verl and Tinker, with any Â for r - V, and the paper's τ under the name `beta`. TRL has none.
    """
    return ComposedObjective(level=token, surrogate=surrogates.dro(tau=tau), weight=token_mean)


@marks.objective(published_with="group_centred")
def prime_rl(*, threshold_low: float = 0.2, threshold_high: float = 0.2, pull: float = 1e-3) -> ComposedObjective:
    """The default loss of prime-rl (August 2026): DPPO (arXiv 2602.04879) with a quadratic pull.

        J = 1/Σ_i|o_i| Σ_i Σ_t { M_it ρ_it Â_it - pull · (log ρ_it)² },   ρ_it = πθ(o_it) / π_rollout(o_it)
        M_it = 0 if Â_it > 0 and πθ - π_rollout > threshold_high, or Â_it < 0 and πθ - π_rollout < -threshold_low,
        else 1

    The pull is that of Kimi K2.5 (arXiv 2602.02276). prime-rl uses it with Â = group_centred. Everything is measured
    from π_rollout, the probabilities that the engine reported.
    What differs: log ρ is clamped to ±20 in ρ, not in the pull. prime-rl's factor of Â, `adv_tau`, is left out: it is
    the same as a pull divided by it, with the learning rate multiplied by it.
    """
    return ComposedObjective(
        surrogate=surrogates.prime_rl(threshold_low=threshold_low, threshold_high=threshold_high, pull=pull),
        weight=token_mean,
        bypass=True,
    )


@marks.objective(published_with="group_centred")
def prime_rl_ipo(*, threshold: float = 0.1, pull: float = 1e-3) -> ComposedObjective:
    """The loss that prime-rl calls "ipo" (August 2026): `prime_rl` with a bound on both sides.

        J = 1/Σ_i|o_i| Σ_i Σ_t { 1[|πθ - π_rollout| ≤ threshold] ρ_it Â_it - pull · (log ρ_it)² }

    A token that has moved far against its advantage loses its gradient too. It is no preference optimisation: DPO's
    "IPO" (arXiv 2310.12036) is another method. prime-rl uses it with Â = group_centred.
    What differs: as for `prime_rl`.
    """
    surrogate = surrogates.prime_rl(threshold_low=threshold, threshold_high=threshold, symmetric=True, pull=pull)
    return ComposedObjective(surrogate=surrogate, weight=token_mean, bypass=True)


# -------------------------------------------------------------------------------------------- the plain policy gradient
# The policy gradient without a clip, and its neighbours: these methods differ mostly in Â.
#
# At the first optimiser step over a batch all of `ppo`, `dapo`, `cispo` and `gpg` have the same gradient; use
# methods that are meant to be strictly on-policy with one update per batch.


@marks.objective(published_with="reward")
def reinforce() -> ComposedObjective:
    """REINFORCE; Williams (1992), Machine Learning 8, 229-256.

        J = 1/B Σ_i Σ_t Â_it log πθ(o_it)

    Published with Â = reward, or with a baseline subtracted from it. Its gradient is that of the expected reward.
    What differs: CS336's forms (spring 2025, assignment 5), naive with Â = reward and "with baseline" with a group
    advantage, take the mean over an answer's tokens: `replace(reinforce(), weight=sequence_mean)`. OpenRLHF's
    "reinforce" is `reinforce_pp`.
    """
    return ComposedObjective(surrogate=log_likelihood, weight=sequence_sum)


@marks.objective(published_with="leave_one_out")
def rloo() -> ComposedObjective:
    """REINFORCE leave-one-out; RLOO (arXiv 2402.14740).

        J = 1/B Σ_i Â_i Σ_t log πθ(o_it),   Â_i = r_i - the mean reward of the others in its group

    The answer is one action, and its log-probability a sum. Published with Â = leave_one_out, the KL in the reward.
    What differs: TRL clips a ratio instead, see `rloo_clip`; in verl RLOO is an advantage for any loss.
    """
    return ComposedObjective(surrogate=log_likelihood, weight=sequence_sum)


@marks.objective(published_with="remax")
def remax() -> ComposedObjective:
    """ReMax; arXiv 2310.10505.

        J = 1/B Σ_i Σ_t Â_i log πθ(o_it),   Â_i = r_i - the reward of the greedy answer to the same prompt

    Published with Â = remax, for which the greedy answer is sampled and scored, and never trained on.
    What differs: verl has it as an advantage for PPO's clip.
    """
    return ComposedObjective(surrogate=log_likelihood, weight=sequence_sum)


@marks.objective(published_with="length_weighted")
def opo() -> ComposedObjective:
    """On-policy RL with the optimal reward baseline; OPO (arXiv 2505.23585).

        J = 1/B Σ_i Â_i Σ_t log πθ(o_it),   Â_i = r_i - Σ_j |o_j| r_j / Σ_j |o_j|

    Published with Â = length_weighted, with exactly one update per batch and with neither KL nor entropy bonus.
    What differs: in verl OPO is an advantage for any loss, whose default takes a mean over tokens.
    """
    return ComposedObjective(surrogate=log_likelihood, weight=sequence_sum)


@marks.objective(published_with="gpg")
def gpg() -> ComposedObjective:
    """Group Policy Gradient; GPG (arXiv 2504.02546).

        J = 1/Σ_i|o_i| Σ_i Σ_t Â_i log πθ(o_it)

    Published with Â = gpg: group-centred, and scaled up for the answers in groups whose rewards are all equal.
    What differs: nothing known; verl's loss is this one, and its factor of Â is another: see the advantage.
    """
    return ComposedObjective(surrogate=log_likelihood, weight=token_mean)


@marks.objective(published_with="reinforce_pp", also_published_with=("reinforce_pp_baseline",))
def reinforce_pp(*, clip_low: float = 0.2, clip_high: float = 0.2) -> ComposedObjective:
    """REINFORCE++; arXiv 2501.03262.

        J = 1/Σ_i|o_i| Σ_i Σ_t min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it]

    Despite its name it has PPO's clip; the REINFORCE part is Â: the reward to go, minus a per-token KL, whitened over
    all tokens of the batch. Published with Â = reinforce_pp, or reinforce_pp_baseline.
    What differs: the loss is the one of OpenRLHF and verl, whose whitenings differ (see the advantages).
    """
    return ComposedObjective(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=token_mean)


@marks.objective(published_with="distillation")
def distillation() -> ComposedObjective:
    """On-policy distillation: a teacher scores every token that the student has sampled.

        J = 1/Σ_i|o_i| Σ_i Σ_t ρ_it Â_it,   Â_it = log π_teacher(o_it) - log π_old(o_it)

    Its gradient is minus that of KL(πθ‖π_teacher) per token, for a fixed prefix (the on-policy reverse KL of
    GKD, arXiv 2306.13649, on sampled tokens). Published with Â = distillation, from the teachers of the run.
    What differs: `gkd` sums over the vocabulary, as the paper does; one sampled token is the same in expectation, with
    more variance. The reward is that of this token only, without its effect on later tokens.
    """
    return ComposedObjective(level=token, surrogate=unclipped, weight=token_mean)


@marks.objective(published_with="distillation")
def gkd() -> ComposedObjective:
    """On-policy distillation over the whole vocabulary; GKD (arXiv 2306.13649) equation 1 and algorithm 1, λ = 1.

        J = -1/Σ_i|o_i| Σ_i Σ_t D(πθ(·|q, o_i<t), π_T(·|q, o_i<t))

    with D = `teacher_divergence`: the reverse KL unless another of `outdo.algorithms.vocabulary_divergences` is set.
    No reward pushes. Published with Â = distillation, which pushes nothing either: it says of each token what the
    teacher thinks of it, for the record.
    What differs: the gradient does not go through the sampling, as in the paper; the mean is over the tokens of the
    optimiser step.
    """
    return ComposedObjective(surrogate=nothing, weight=token_mean, teacher_beta=1.0)


@marks.objective(name="rejection", published_with="rejection")
def likelihood() -> ComposedObjective:
    """Supervised fine-tuning: J = Σ_t log πθ(o_t) / Σ |o|, over the tokens of the answers, with Â = 1.

    With Â = rejection, which is 1 for right answers and leaves out the others, it is rejection-sampling
    fine-tuning, the baseline for other methods.
    """
    return ComposedObjective(surrogate=log_likelihood, weight=token_mean)
