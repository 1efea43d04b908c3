"""The policy gradient without a clip, and its neighbours: what differs between these methods is mostly Â.

At the first optimiser step over a batch all of `ppo`, `dapo`, `cispo` and `gpg` have the same gradient; what is meant
to be strictly on-policy belongs with one update per batch.
"""

from outdo.algorithms.objectives.base import Formula
from outdo.algorithms.objectives.ratios import token
from outdo.algorithms.objectives.surrogates import clip, log_likelihood, unclipped
from outdo.algorithms.objectives.weights import sequence_sum, token_mean


def reinforce() -> Formula:
    """REINFORCE; Williams (1992), Machine Learning 8, 229-256.

        J = 1/B Σ_i Σ_t Â_it log πθ(o_it)

    Published with Â = reward, or with a baseline taken off it. Its gradient is that of the expected reward.
    What differs: CS336's forms (spring 2025, assignment 5), naive with Â = reward and "with baseline" with a group
    advantage, take the mean over an answer's tokens: `replace(reinforce(), weight=sequence_mean)`. OpenRLHF's
    "reinforce" is `reinforce_pp`.
    """
    return Formula(surrogate=log_likelihood, weight=sequence_sum)


def rloo() -> Formula:
    """REINFORCE leave-one-out; RLOO (arXiv 2402.14740).

        J = 1/B Σ_i Â_i Σ_t log πθ(o_it),   Â_i = r_i - the mean reward of the others in its group

    The answer is one action, and its log-probability a sum. Published with Â = leave_one_out, the KL in the reward.
    What differs: TRL clips a ratio instead, see `rloo_clip`; in verl RLOO is an advantage for any loss.
    """
    return Formula(surrogate=log_likelihood, weight=sequence_sum)


def remax() -> Formula:
    """ReMax; arXiv 2310.10505.

        J = 1/B Σ_i Σ_t Â_i log πθ(o_it),   Â_i = r_i - the reward of the likeliest answer to the same prompt

    Published with Â = remax, which has that answer sampled and scored, and is never trained on.
    What differs: verl has it as an advantage for PPO's clip.
    """
    return Formula(surrogate=log_likelihood, weight=sequence_sum)


def opo() -> Formula:
    """On-policy RL with the optimal reward baseline; OPO (arXiv 2505.23585).

        J = 1/B Σ_i Â_i Σ_t log πθ(o_it),   Â_i = r_i - Σ_j |o_j| r_j / Σ_j |o_j|

    Published with Â = length_weighted, with exactly one update per batch and with neither KL nor entropy bonus.
    What differs: in verl OPO is an advantage for any loss, whose default takes a mean over tokens.
    """
    return Formula(surrogate=log_likelihood, weight=sequence_sum)


def gpg() -> Formula:
    """Group Policy Gradient; GPG (arXiv 2504.02546).

        J = 1/Σ_i|o_i| Σ_i Σ_t Â_i log πθ(o_it)

    Published with Â = gpg: group-centred, and scaled by how many of the batch's groups have any difference in them.
    What differs: nothing known; verl's loss is this one.
    """
    return Formula(surrogate=log_likelihood, weight=token_mean)


def reinforce_pp(*, clip_low: float = 0.2, clip_high: float = 0.2) -> Formula:
    """REINFORCE++; arXiv 2501.03262.

        J = 1/Σ_i|o_i| Σ_i Σ_t min[ρ_it Â_it, clip(ρ_it, 1 - clip_low, 1 + clip_high) Â_it]

    Despite its name it has PPO's clip; what is REINFORCE in it is Â: the reward to go, a per-token KL taken off it,
    whitened over all tokens of the batch. Published with Â = reinforce_pp, or reinforce_pp_baseline.
    What differs: the loss is the one of OpenRLHF and verl, whose whitenings differ (see the advantages).
    """
    return Formula(level=token, surrogate=clip(low=clip_low, high=clip_high), weight=token_mean)


def distillation() -> Formula:
    """On-policy distillation: a teacher scores every token that the student has sampled.

        J = 1/Σ_i|o_i| Σ_i Σ_t ρ_it Â_it,   Â_it = log π_teacher(o_it) - log π_old(o_it)

    Its gradient is minus that of KL(πθ‖π_teacher) per token, the prefix taken as given (the on-policy reverse KL of
    GKD, arXiv 2306.13649, on sampled tokens). Published with Â = distillation; the teacher is the reference policy.
    What differs: GKD sums over the vocabulary; one sampled token is the same in expectation. The reward is of this
    token only: what it leads to is not counted.
    """
    return Formula(level=token, surrogate=unclipped, weight=token_mean)


def likelihood() -> Formula:
    """Supervised fine-tuning: J = Σ_t log πθ(o_t) / Σ |o|, over the tokens of the answers, with Â = 1.

    With Â = rejection, which is 1 for answers that were right and leaves the others out, it is rejection-sampling
    fine-tuning, the baseline to beat.
    """
    return Formula(surrogate=log_likelihood, weight=token_mean)
