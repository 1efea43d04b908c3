"""Advantages from a teacher: δ_t = log π_T - log π_old of the token that the policy sampled.

`batch.teacher_logprobs` has log π_T; of several teachers of a row it is their weighted mean, so that δ_t is the mean of
theirs. δ_t > 0 where the teacher finds the token more probable than the policy does.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.advantages.base import needed, per_token
from outdo.algorithms.advantages.group import group_standardised
from outdo.algorithms.requirements import requires
from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch


@marks.advantage(reads_rewards=False, not_with_kl_in_reward="uses no reward")
@requires(teacher=True, old_logprobs=True)
def distillation(batch: Batch) -> Batch:
    """Â_t = δ_t: learn from a teacher on the policy's own answers.

    Minus k1 of each token: its mean over answers sampled from the policy is -KL(π_old‖π_T), so the policy moves towards
    the teacher (on-policy distillation; GKD, arXiv 2306.13649, with reverse KL; MiniLLM, arXiv 2306.08543). The rewards
    are not used.
    """
    return batch.with_(advantages=_delta(batch))


@marks.advantage(compares_group=True, scaled_in_group=True)
@requires(teacher=True, old_logprobs=True)
def mopd(batch: Batch, *, alpha: float = 1.0) -> Batch:
    """Â_t = δ_t + α Â, with Â = group_standardised; multi-teacher on-policy distillation (arXiv 2606.30406).

    Each row is taught by the teacher that it names, or by all of them: see `outdo.Teacher`. With α = 0 it is
    `distillation`. What differs: MiMo-V2-Flash also drops tokens of which engine and trainer disagree; here that is a
    correction of the objective.
    """
    return batch.with_(advantages=_delta(batch) + alpha * _outcome(batch))


@marks.advantage(reads_rewards=False, not_with_kl_in_reward="uses no reward")
@requires(teacher=True, old_logprobs=True)
def iw_opd(batch: Batch, *, gamma: float = 0.5) -> Batch:
    """Â_t = [1 + γ (1 - Σ_{s<t} |δ_s| / Σ_s |δ_s|)] δ_t; IW-OPD (arXiv 2606.22600) algorithm 1.

    The further an answer has gone where the teacher would not have, the less the teacher's word on its later tokens
    counts. The sums are over the trained tokens of a conversation. With γ = 0 it is `distillation`. Raises ValueError
    for a γ below 0.
    """
    if not 0 <= gamma < float("inf"):
        raise ValueError(f"iw_opd: gamma must be a number from 0, not {gamma}")
    conversations = Unfolded.of(batch.with_(advantages=_delta(batch)))
    delta = needed(conversations.batch, "advantages")  # [C, L]
    sizes = delta.abs()
    before = sizes.cumsum(1) - sizes
    drift = before / sizes.sum(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    return batch.with_(advantages=conversations.folded((1 + gamma * (1 - drift)) * delta))


@marks.advantage(compares_group=True, scaled_in_group=True)
@requires(teacher=True, old_logprobs=True)
def rlsd(batch: Batch, *, lam: float = 0.5, clip: float = 0.2) -> Batch:
    """Â_t = Â [1 - λ + λ clip(e^{sign(Â) δ_t}, 1 - clip, 1 + clip)], Â = group_standardised; RLSD (arXiv 2604.03128).

    The reward decides the direction of each token, and the teacher, usually the policy itself with a hint, how far it
    goes: Â_t never has another sign than Â. Raises ValueError for λ and clip that are not from 0 to 1.
    """
    if not (0 <= lam <= 1 and 0 <= clip <= 1):
        raise ValueError(f"rlsd: lam and clip must be from 0 to 1, not {lam} and {clip}")
    outcome = _outcome(batch)
    evidence = (outcome.sign() * _delta(batch)).exp().clamp(1 - clip, 1 + clip)
    return batch.with_(advantages=outcome * (1 - lam + lam * evidence))


def _delta(batch: Batch) -> Float[Tensor, "B T"]:
    """Return δ [B, T], 0 outside of `loss_mask`."""
    return needed(batch, "teacher_logprobs") - needed(batch, "old_logprobs")


def _outcome(batch: Batch) -> Float[Tensor, "B T"]:
    """Return the standardised reward of each answer at its trained tokens. [B, T]"""
    advantages = per_token(group_standardised)(batch).advantages
    assert advantages is not None
    return advantages
