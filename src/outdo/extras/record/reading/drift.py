"""How far answers have drifted from what the starting policy would write.

    start_logprob = mean of log π_start(token | before)
    drift         = mean of log π(token | before) - log π_start(token | before)

over the tokens that the policy sampled, in nats per token. For answers at temperature 1, `drift` estimates the KL
divergence KL(π‖π_start) of a token. A policy that only chooses among what it could write already has a `start_logprob`
that rises; it falls where the answers leave the language of the starting policy.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from outdo.extras.record.reading.measure import QUESTIONS
from outdo.types import Batch, Group


def first_completions(groups: Sequence[Group]) -> Batch:
    """Return the first answer to each of the first questions, which are measured."""
    return Batch.from_groups([replace(group, rollouts=group.rollouts[:1]) for group in groups[:QUESTIONS]])


def drift_metrics(batch: Batch, now: Tensor, start: Tensor) -> dict[str, float]:
    """Return `start_logprob` and `drift` of a batch by its log-probabilities now and under the starting policy. [B, T]

    The batch has a token that was sampled.
    """

    def mean(values: Tensor) -> float:
        return float(values[batch.loss_mask].double().mean())

    return {"start_logprob": mean(start), "drift": mean(now) - mean(start)}
