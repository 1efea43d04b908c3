"""Answers that share contexts: one context of one-token answers, and trees of any shape with a policy over them."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor
from toys import batch_of, rollout

from outdo.algorithms.objectives.target.objective import TargetObjective, target
from outdo.types import Batch, Rollout

ESSAY = {"rule": "power", "count": "once", "unsampled": "absorb", "limit": 1.0, "reduction": "sum"}
"""The options of `target` that `target_essay` sets."""


def essay(**options: object) -> TargetObjective:
    """Return `target_essay` with any options of `target`."""
    return target(**{**ESSAY, "eta": 1.0, **options})  # type: ignore[arg-type]


def one_context(signs: Sequence[float], tokens: Sequence[int] | None = None) -> Batch:
    """One group of one-token answers, their advantages in float64."""
    names = range(len(signs)) if tokens is None else tokens
    batch = batch_of([rollout(token_ids=(name,), loss_mask=(True,), logprobs=(0.0,)) for name in names])
    return batch.with_(advantages=doubles(signs)[:, None] * batch.loss_mask)


def logprobs_of(batch: Batch, logits: Tensor) -> Tensor:
    """log πθ [B, T] of one-token answers, from the logits [V] of the one context."""
    logprobs = logits.log_softmax(0)[batch.token_ids[:, -1]]  # [B]
    return torch.stack([torch.zeros_like(logprobs), logprobs], 1)


def doubles(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def vocabulary(sampled: Sequence[float], others: int = 4) -> Tensor:
    """Logits of the sampled tokens' probabilities, what is left shared by `others` tokens."""
    left = 1 - sum(sampled)
    return doubles([*sampled, *([left / others] * others if left > 1e-9 else [])]).log()


def answers(*rows: tuple[int, ...]) -> list[Rollout]:
    return [rollout(token_ids=row, loss_mask=(True,) * len(row), logprobs=(0.0,) * len(row)) for row in rows]


@st.composite
def trees(draw: st.DrawFn) -> Batch:
    """Groups of answers over few tokens, 0 among them, so that prefixes are shared; any mask, advantage and status."""

    def answer() -> Rollout:
        tokens = draw(st.lists(st.integers(0, 2), max_size=4))
        mask = draw(st.lists(st.sampled_from([True, True, False]), min_size=len(tokens), max_size=len(tokens)))
        status = draw(st.sampled_from(["ok", "ok", "ok", "failed"]))
        return rollout(len(tokens), token_ids=tuple(tokens), mask=mask, status=status)

    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    batch = batch_of(*[[answer() for _ in range(size)] for size in sizes])
    signs = [draw(st.sampled_from([1.0, -1.0, 0.0, 0.4, -2.0])) for _ in range(len(batch))]
    return batch.with_(old_logprobs=tabular(batch, 0), advantages=doubles(signs)[:, None] * batch.loss_mask)


def tabular(batch: Batch, seed: int) -> Tensor:
    """log π [B, T] of a policy over four tokens that is a function of what was read, as a policy is."""
    logprobs = torch.zeros(batch.token_ids.shape, dtype=torch.float64)
    for b, t in batch.loss_mask.nonzero().tolist():
        read = (seed, int(batch.group[b]), *batch.token_ids[b, :t].tolist())
        random = torch.Generator().manual_seed(hash(read) % 2**31)
        logits = torch.randn(4, generator=random, dtype=torch.float64)
        logprobs[b, t] = logits.log_softmax(0)[batch.token_ids[b, t]]
    return logprobs
