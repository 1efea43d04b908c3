"""PPO's clip and its descendants: the ratio of the token, or of the whole answer, is held near 1.

A clip binds only where a batch is used for more than one optimiser step: at the first, every ratio is 1.
"""

from outdo.algorithms.objectives import surrogates
from outdo.algorithms.objectives.base import Formula
from outdo.algorithms.objectives.batch_transforms import covariant, without_covariant
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.objectives.ratios import sequence, sequence_product, sequence_token, token
from outdo.algorithms.objectives.surrogates import clip, geometric_clip
from outdo.algorithms.objectives.weights import constant, sequence_mean, sequence_sum, token_mean


def grpo(*, clip_low: float = 0.2, clip_high: float = 0.2, beta: float = 0.04) -> Formula:
    """Group Relative Policy Optimization; DeepSeekMath (arXiv 2402.03300) equation 3.

        J = 1/G Σ_i 1/|o_i| Σ_t { min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it] - β k3(πθ, π_ref) }

    The paper's ε is both `clip_low` and `clip_high`; β is the paper's 0.04 and needs a reference, 0 needs none.
    Published with Â = group_standardised.
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


def grpo_clip(*, clip_low: float = 0.2, clip_high: float = 0.2) -> Formula:
    """GRPO-Clip without a reference; CS336 (spring 2025, assignment 5) Algorithm 3.

        J = 1/B Σ_i 1/|o_i| Σ_t min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i]

    `grpo` with β = 0, under the name a reader of that course looks for. Published with Â = group_standardised.
    What differs: the course divides by the gradient accumulation steps, here the mean is over the optimiser step.
    """
    return Formula(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=sequence_mean)


def ppo(*, clip_low: float = 0.2, clip_high: float = 0.2, dual: float | None = None) -> Formula:
    """Proximal Policy Optimization, its clipped surrogate; arXiv 1707.06347 equation 7.

        J = 1/Σ_i|o_i| Σ_i Σ_t min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it]

    with, if `dual` (c) is set, max(that, c Â_it) where Â_it < 0 (arXiv 1912.09729). Published with Â = gae.
    What differs: the value function is trained beside the policy, by its own optimiser, so that c_1 and the value loss
    of equation 9 are not here; a KL penalty stands in the reward. verl has dual = 3 unless told otherwise, OpenRLHF
    none; TRL 1.16 has no PPO with a value model.
    """
    return Formula(level=token, surrogate=clip(low=clip_low, high=clip_high, dual=dual), weight=token_mean)


def dr_grpo(*, length: int, clip_low: float = 0.2, clip_high: float = 0.2) -> Formula:
    """Dr. GRPO, GRPO done right; arXiv 2503.20783.

        J = 1/B Σ_i 1/length Σ_t min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i]

    `length` is the longest answer there may be, in tokens. Published with Â = group_centred, and without a KL.
    What differs: TRL's "dr_grpo" leaves the division by σ on unless `scale_rewards` is switched off as well, and counts
    answers without a trained token in B; verl's divides by the padded width of the batch unless given a number.
    """
    return Formula(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=constant(length=length))


def dapo(*, clip_low: float = 0.2, clip_high: float = 0.28) -> Formula:
    """Decoupled clip and dynamic sampling policy optimisation; DAPO (arXiv 2503.14476) equation 8.

        J = 1/Σ_i|o_i| Σ_i Σ_t min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i]

    Published with Â = group_standardised. This is the paper's objective; its dynamic sampling, its soft punishment of
    long answers and its filter for truncated ones are parts of the rollout, the reward and the advantage.
    What differs: the mean is over all groups of the optimiser step, the paper's over one. TRL counts the tokens of the
    whole generation and rescales them, which is not the same where lengths differ between accumulation windows.
    """
    return Formula(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=token_mean)


def bnpo(*, clip_low: float = 0.2, clip_high: float = 0.2, beta: float = 0.0) -> Formula:
    """TRL's `loss_type` "bnpo": a mean over the tokens of the batch at hand.

        J = 1/Σ_i|o_i| Σ_i Σ_t { min[ρ_it Â_i, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_i] - β ρ_it k3(πθ, π_ref) }

    Published with Â = group_standardised.
    What differs: TRL takes the mean over each micro-batch and averages those means, so that its gradient depends on how
    the batch was cut; here the tokens are those of the optimiser step, which for one micro-batch is the same.
    """
    return Formula(
        level=token,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=token_mean,
    )


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, beta: float = 0.0) -> Formula:
    """Group Sequence Policy Optimization; arXiv 2507.18071 equations 5 and 7.

        J = 1/B Σ_i { min[s_i Â_i, clip(s_i, 1 - clip_low, 1 + clip_high) Â_i] - β s_i 1/|o_i| Σ_t k3(πθ, π_ref) }
        s_i = exp(1/|o_i| Σ_t log ρ_it)

    The bounds are the paper's (section 5.1). Published with Â = group_standardised; it leaves the KL out.
    What differs: nothing known. TRL gives the same with `importance_sampling_level` "sequence" and `loss_type` "grpo"
    only; verl has `gspo_token` under this name, with log s_it kept below 10; AReaL takes a mean over tokens.
    """
    return Formula(
        level=sequence,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=sequence_mean,
    )


def gspo_token(*, clip_low: float = 3e-4, clip_high: float = 4e-4, beta: float = 0.0) -> Formula:
    """GSPO with an advantage per token; arXiv 2507.18071 section 4.3.

        J = 1/B Σ_i 1/|o_i| Σ_t { min[s_it Â_it, clip(s_it, 1 - clip_low, 1 + clip_high) Â_it] - β s_it k3(πθ, π_ref) }
        s_it = sg[s_i] πθ(o_it) / sg[πθ(o_it)]

    Where all tokens of an answer have one Â, value and gradient are those of `gspo` (at β = 0).
    What differs: TRL 1.16 has dropped it; verl calls it "gspo".
    """
    return Formula(
        level=sequence_token,
        surrogate=clip(low=clip_low, high=clip_high),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=sequence_mean,
    )


def luspo(*, clip_low: float = 2e-3, clip_high: float = 2.5e-3) -> Formula:
    """Length-unbiased sequence policy optimisation; LUSPO (arXiv 2602.05261).

        J = 1/B Σ_i |o_i| min[s_i Â_i, clip(s_i, 1 - clip_low, 1 + clip_high) Â_i]

    `gspo` times |o_i|: long answers weigh by their tokens again. Published with Â = group_standardised.
    What differs: TRL's "luspo" counts answers without a trained token in B, and is this only with
    `importance_sampling_level` "sequence", which is not its default.
    """
    return Formula(level=sequence, surrogate=clip(low=clip_low, high=clip_high), weight=sequence_sum)


def gmpo(*, clip: float = 0.4, beta: float = 0.0) -> Formula:
    """Geometric-Mean Policy Optimization; GMPO (arXiv 2507.20673).

        J = 1/B Σ_i { Â_i exp(1/|o_i| Σ_t c_it) - β 1/|o_i| Σ_t ρ_it k3(πθ, π_ref) }
        c_it = min(d, clip(d, ±clip)) if Â_i > 0 else max(d, clip(d, ±clip)),   d = log ρ_it

    Published with Â = group_standardised.
    What differs: TRL's experimental GMPO has the plain k3, and adds -Â_i to the value of the loss (not to its gradient)
    for an answer without a trained token; verl divides by |o_i| + 1e-8.
    """
    return Formula(
        level=token,
        surrogate=geometric_clip(clip=clip),
        divergence=k3,
        beta=beta,
        kl_ratio=True,
        weight=sequence_mean,
    )


def rloo_clip(*, clip_low: float = 0.2, clip_high: float = 0.2) -> Formula:
    """RLOO as TRL 1.16 has it: PPO's clip on the ratio of the whole answer.

        J = 1/B Σ_i min[W_i Â_i, clip(W_i, 1 - clip_low, 1 + clip_high) Â_i],   W_i = Π_t ρ_it

    TRL's Â is leave_one_out. For the paper's own objective see `rloo`, of which this is the gradient at W = 1.
    What differs: log W is kept within ±20; TRL counts answers without a trained token in B. A product of ratios leaves
    the window after a few hundredths of a nat, however long the answer: long answers are clipped almost at once.
    """
    return Formula(level=sequence_product, surrogate=clip(low=clip_low, high=clip_high), weight=sequence_mean)


def clip_cov(
    *,
    clip_low: float = 1.0,
    clip_high: float = 1.0,
    share: float = 0.0002,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    seed: int = 0,
) -> Formula:
    """Clip-Cov: a few tokens that would cost entropy are left out; arXiv 2505.22617.

        J = 1/Σ_i|o_i| Σ_i Σ_t 1[it not drawn] min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it]

    Drawn by lot are `share` of the tokens, of those with cov_low < (Â - mean Â)(log π - mean log π) < cov_high.
    The clip at [0, 2] and the bounds are those of the authors' runs. Published with Â = group_standardised.
    What differs: the draw is made once per batch, with π_old; the authors and verl make it anew in every micro-batch
    with πθ, among tokens that the clip leaves alone. See `preparations.without_covariant`.
    """
    return Formula(
        level=token,
        surrogate=clip(low=clip_low, high=clip_high),
        weight=token_mean,
        preparation=without_covariant(share=share, low=cov_low, high=cov_high, seed=seed),
    )


def kl_cov(*, percent: float = 0.2, coefficient: float = 1.0) -> Formula:
    """KL-Cov: the tokens that would cost most entropy are held at π_old; arXiv 2505.22617.

        J = 1/Σ_i|o_i| Σ_i Σ_t { ρ_it Â_it - coefficient · 1[it marked] |log ρ_it| }

    Marked are the `percent` of tokens with the largest (Â - mean Â)(log π - mean log π). There is no clip. Published
    with Â = group_standardised.
    What differs: the marks are made once per batch, with π_old; the authors and verl make them anew in every
    micro-batch with πθ. verl's `kl_cov_ratio` is a share (0.0002 for 0.02 %), and its configured coefficient 0.1.
    """
    return Formula(
        level=token,
        surrogate=surrogates.kl_cov(coefficient=coefficient),
        weight=token_mean,
        preparation=covariant(percent=percent),
    )
