"""How far answers have drifted from what the starting policy would write.

    start_logprob = mean of log π_start(token | before)
    drift         = mean of log π(token | before) - log π_start(token | before)

over the tokens that the policy sampled, in nats per token. Of answers at temperature 1, `drift` estimates the KL
divergence KL(π‖π_start) of a token. A policy that only chooses among what it could write already has a `start_logprob`
that rises; it falls where the answers leave the language of the starting policy.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from outdo.models.scorer import Scorer
from outdo.observability.reading.measure import QUESTIONS
from outdo.types import Batch, Group


def drift_metrics(policy: Scorer, start: Scorer, groups: Sequence[Group]) -> dict[str, float]:
    """Return `start_logprob` and `drift` of the first answer to each of the first questions; nothing without a token.

    `start` is the policy as it was before the first step.
    """
    batch = Batch.from_groups([replace(group, rollouts=group.rollouts[:1]) for group in groups[:QUESTIONS]])
    if not batch.loss_mask.any():
        return {}

    def mean(values: Tensor) -> float:  # [B, T]
        return float(values[batch.loss_mask].double().mean())

    now = policy.logprobs(batch)
    then = now if start is policy else start.logprobs(batch)
    return {"start_logprob": mean(then), "drift": mean(now) - mean(then)}
