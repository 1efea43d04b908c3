"""The divergence of a policy from a teacher over the whole vocabulary, for each token; on-policy distillation.

p_v = softmax(z / τ)_v is the policy, q_v = softmax(t / τ_T)_v the teacher, both after the same tokens of an answer: z
and t are their logits, τ the temperature at which the answer was sampled. A divergence is a function `(logits,
teacher_logits, temperature) -> D`, which any training loop can call. Only the policy's logits get a gradient.

The estimators of `outdo.algorithms.objectives.divergences` see the sampled token alone: the gradient of a sum over the
vocabulary has the same expectation as that of k2 or the advantage `distillation`, and less variance.

With `top` k, both distributions are those over the k tokens that the teacher finds most probable, with all other tokens
as one more outcome. The divergence is then not larger than that of the whole vocabulary.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outdo.algorithms.vocabulary_sums import Logits, Temperature, scaled

VocabularyDivergence = Callable[[Tensor, Tensor, Temperature], Tensor]
"""`(logits, teacher_logits, temperature) -> D`: [N, V], [N, V] and [N] or a number -> [N], in nats."""

LogProbs = Float[Tensor, "*N K"]


def reverse_kl(*, top: int = 0, teacher_temperature: float | None = None) -> VocabularyDivergence:
    """D = KL(p‖q) = Σ_v p_v (log p_v - log q_v): the policy leaves what the teacher finds improbable.

    ∂D/∂z_v = p_v [(z_v - t_v) - Σ_u p_u (z_u - t_u)] / τ at equal temperatures. It is MiniLLM's divergence (arXiv
    2306.08543), on the policy's own answers; TRL's `beta` = 1. `teacher_temperature` is τ_T; None: the policy's τ.
    `top` is k; 0: all tokens. Raises ValueError for a k below 0 and a τ_T that is not above 0.
    """

    def divergence(policy: LogProbs, teacher: LogProbs) -> Float[Tensor, "*N"]:
        return _expectation(policy, policy - teacher)

    return _of_logits(divergence, top=top, teacher_temperature=teacher_temperature)


def forward_kl(*, top: int = 0, teacher_temperature: float | None = None) -> VocabularyDivergence:
    """D = KL(q‖p) = Σ_v q_v (log q_v - log p_v): the policy covers all that the teacher finds probable.

    ∂D/∂z_v = (p_v - q_v) / τ, as in fine-tuning on the teacher's distribution; TRL's `beta` = 0. The options are those
    of `reverse_kl`.
    """

    def divergence(policy: LogProbs, teacher: LogProbs) -> Float[Tensor, "*N"]:
        return _expectation(teacher, teacher - policy)

    return _of_logits(divergence, top=top, teacher_temperature=teacher_temperature)


def jensen_shannon(
    *, beta: float = 0.5, top: int = 0, teacher_temperature: float | None = None
) -> VocabularyDivergence:
    """D = β KL(q‖m) + (1 - β) KL(p‖m) with m = β q + (1 - β) p; GKD (arXiv 2306.13649) equation 1.

    It is bounded. D/β tends to the forward KL as β → 0 and D/(1 - β) to the reverse KL as β → 1; D itself tends to 0.
    TRL computes the two KLs themselves for 0 and 1; here these are `forward_kl` and `reverse_kl`. The other options are
    those of `reverse_kl`. Raises ValueError for a β that is not between 0 and 1.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta must be between 0 and 1, not {beta}: use forward_kl for 0, reverse_kl for 1")

    def divergence(policy: LogProbs, teacher: LogProbs) -> Float[Tensor, "*N"]:
        mixture = torch.logaddexp(teacher + math.log(beta), policy + math.log1p(-beta))
        return beta * _expectation(teacher, teacher - mixture) + (1 - beta) * _expectation(policy, policy - mixture)

    return _of_logits(divergence, top=top, teacher_temperature=teacher_temperature)


def _of_logits(
    divergence: Callable[[Tensor, Tensor], Tensor], *, top: int, teacher_temperature: float | None
) -> VocabularyDivergence:
    """Return the divergence of two logits from that of two log-probabilities, [N, K] each."""
    if top < 0:
        raise ValueError(f"top is a number of tokens, 0 for all of them, not {top}")
    if teacher_temperature is not None and not 0 < teacher_temperature < math.inf:
        raise ValueError(f"teacher_temperature must be a number above 0, not {teacher_temperature}")

    def of_logits(logits: Logits, teacher_logits: Logits, temperature: Temperature = 1.0) -> Float[Tensor, "*N"]:
        z = scaled(logits, temperature)
        t = scaled(teacher_logits.detach(), temperature if teacher_temperature is None else teacher_temperature)
        policy, teacher = z.log_softmax(-1), t.log_softmax(-1)
        if 0 < top < z.shape[-1]:
            chosen = t.topk(top, -1).indices  # [N, k]
            policy, teacher = with_tail(policy, chosen), with_tail(teacher, chosen)
        return divergence(policy, teacher)

    return of_logits


def with_tail(logprobs: Float[Tensor, "*N V"], chosen: Int[Tensor, "*N k"]) -> LogProbs:
    """Return the log-probabilities of the chosen tokens, and that of all others together. [N, V], [N, k] -> [N, k + 1]

    The others are added up themselves: 1 - Σ_k p_k would lose a small remainder to rounding.
    """
    others = logprobs.scatter(-1, chosen, torch.finfo(logprobs.dtype).min).logsumexp(-1, keepdim=True)
    return torch.cat([logprobs.gather(-1, chosen), others], -1)


def _expectation(logprobs: LogProbs, values: LogProbs) -> Float[Tensor, "*N"]:
    """Return Σ_v e^(log p_v) x_v, where an outcome without probability adds 0 whatever its value is."""
    probabilities = logprobs.exp()
    return (probabilities * values.where(probabilities > 0, 0.0)).sum(-1)
