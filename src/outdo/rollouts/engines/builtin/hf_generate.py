"""Sampling by `model.generate`, for models whose attention cannot be replaced: any architecture, and slower.

The choice of each token is still outdo's: a logits processor takes it by the request's own random numbers, and lets
`generate` see nothing else. Here the tokens of a request may depend on what it was batched with, by rounding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.builtin.sequences import SequenceState, StopRule, extend
from outdo.rollouts.engines.sampling import SamplingParams


class _Choose(LogitsProcessor):
    """Replaces scores by the choice already taken from them."""

    def __init__(self, rows: Sequence[SequenceState], sampling: SamplingParams, rule: StopRule) -> None:
        self.rows, self.sampling, self.rule = rows, sampling, rule

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        live = [index for index, row in enumerate(self.rows) if row.finished is None]
        if live:
            extend([self.rows[index] for index in live], scores[live], self.sampling, self.rule)
        chosen = torch.tensor([[row.token_ids[-1]] for row in self.rows], device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


class _AllDone(StoppingCriteria):
    def __init__(self, rows: Sequence[SequenceState]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        done = [row.finished is not None for row in self.rows]
        return torch.tensor(done, device=input_ids.device)


def generate_padded(
    policy: PolicyView, rows: Sequence[SequenceState], sampling: SamplingParams, rule: StopRule, *, at_once: int
) -> None:
    """Fill in the rows, at most `at_once` at a time, those with prompts of like length together."""
    for part in _parts(rows, at_once, policy.context):
        width = max(len(row.request.token_ids) for row in part)
        missing = [width - len(row.request.token_ids) for row in part]
        token_ids = [[0] * gap + list(row.request.token_ids) for gap, row in zip(missing, part, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in missing]
        with policy.forward.precision():
            policy.model.generate(  # type: ignore[operator]
                torch.tensor(token_ids, device=policy.forward.device),
                attention_mask=torch.tensor(mask, device=policy.forward.device),
                max_new_tokens=max(row.limit for row in part),
                do_sample=False,
                use_cache=True,
                eos_token_id=None,
                pad_token_id=0,
                logits_processor=LogitsProcessorList([_Choose(part, sampling, rule)]),
                stopping_criteria=StoppingCriteriaList([_AllDone(part)]),
            )


def _parts(rows: Sequence[SequenceState], at_once: int, context: int | None) -> list[list[SequenceState]]:
    """Rows that are sampled together: a finished one goes on being fed, and must not leave the model's context."""
    parts: list[list[SequenceState]] = []
    for row in sorted(rows, key=lambda row: len(row.request.token_ids)):
        part = [*(parts[-1] if parts else []), row]
        longest = len(row.request.token_ids) + max(each.limit for each in part)
        if parts and len(part) <= at_once and (context is None or longest <= context):
            parts[-1] = part
        else:
            parts.append([row])
    return parts
