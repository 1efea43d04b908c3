"""Target Policy Optimization: a target for the answers of a group, relative to each other."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.objectives.base import given
from outdo.algorithms.objectives.target.rules import known_logprobs
from outdo.algorithms.requirements import Requires
from outdo.types import Batch, Terms, TokenScores


@marks.objective()
def tpo(*, eta: float = 1.0) -> "TargetPolicy":
    """Target Policy Optimization; Kaddour, arXiv 2604.06159, equations 1 to 3.

        p_i = softmax_i log πθ(o_i)        q_i = softmax_i [ log π_old(o_i) + u_i / η ]        L = -Σ_i q_i log p_i

    over the answers o_i of a group, averaged over groups. log π(o) is the sum over the answer's tokens, and u_i is the
    answer's advantage. The gradient by log πθ(o_i) is p_i - q_i, and is 0 where the policy is at its target. A group
    whose rewards are all equal has no gradient in the first pass, and pulls the policy back to π_old in later ones.

    What differs from the paper: it standardises rewards with the divisor G (appendix A), `group_standardised` with
    G - 1, so that its η = 1 is `eta` = √((G - 1) / G) here, 0.94 for G = 8. Equal answers are separate candidates;
    the paper does not say. Its runs on GSM8K add a KL penalty of 0.001 (appendix G), which is not part of the method.

    Not to be confused with TRL's experimental `tpo`, which is Triple Preference Optimization. Raises `ValueError` for
    an `eta` that is not above 0.
    """
    if not eta > 0:
        raise ValueError(f"eta must be above 0, not {eta}")
    return TargetPolicy(eta=eta)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPolicy:
    """The cross-entropy between the tilted old policy and the policy, over the answers of each group."""

    eta: float
    has_ratio: ClassVar[bool] = False

    @property
    def requires(self) -> Requires:
        """Return π_old, and whole groups."""
        return Requires(old_logprobs=True, whole_groups=True)

    def prepare(self, batch: Batch) -> Batch:
        """Compute q, and store it at every token of its answer."""
        old = known_logprobs(batch)
        advantages = _row_sum(given(batch.advantages, "advantages"), batch) / batch.loss_mask.sum(1).clamp(min=1)
        q = _group_log_softmax(_row_sum(old, batch) + advantages / self.eta, batch).exp()  # [B]
        return batch.with_(prepared={**batch.prepared, "q": q[:, None].expand_as(old)})

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Compute the cross-entropy of a micro-batch of whole groups. Divergence and entropy are 0."""
        log_p = _group_log_softmax(_row_sum(scores.logprobs, batch), batch)  # [B]
        trained = batch.loss_mask.any(1)
        q = batch.prepared["q"].where(batch.loss_mask, 0.0).amax(1)
        policy = (q * log_p)[trained].sum() / max(1, batch.totals.groups)
        zero = policy.detach() * 0
        return Terms(policy=policy, divergence=zero, entropy=zero, loss=-policy)


def _row_sum(values: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B"]:
    """Sum over the trained tokens: [B, T] -> [B]."""
    return values.where(batch.loss_mask, 0.0).sum(1)


def _group_log_softmax(values: Float[Tensor, "B"], batch: Batch) -> Float[Tensor, "B"]:
    """Compute the log softmax over the rows of a group that have a trained token. Any other row is alone."""
    rivals = (batch.group[:, None] == batch.group) & batch.loss_mask.any(1)  # [B, B]
    rivals = rivals | torch.eye(len(values), dtype=torch.bool, device=values.device)
    return values - values.expand(len(values), -1).where(rivals, -torch.inf).logsumexp(1)
