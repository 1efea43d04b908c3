"""The answers being written: what they have so far, how they go on, and when they end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor

from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.sampling import SamplingParams, choose
from outdo.types import FinishReason, Request
from outdo.utils.rng import uniforms


@dataclass(slots=True)
class SequenceState:
    """One answer in the making."""

    request: Request
    key: int  # of its random numbers
    limit: int  # tokens it may have
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: FinishReason | None = None


class StopRule:
    """Ends an answer at an end-of-sequence token, a stop string, the token limit, or the end of the context."""

    def __init__(self, policy: PolicyView, sampling: SamplingParams) -> None:
        self.stop_ids = frozenset(policy.end_ids) | frozenset(sampling.stop_token_ids)
        self.stop = sampling.stop
        self.tokenizer = policy.tokenizer
        self.context = policy.context
        # A stop string may begin inside an earlier token; a token is at least one byte of it.
        self.tail = max((len(text.encode()) for text in self.stop), default=0) + 1
        self.max_tokens = sampling.max_tokens

    def limit(self, request: Request) -> int:
        """Tokens the answer to a request may have: what is asked, what is allowed, and what the context has left."""
        allowed = min(request.max_tokens, self.max_tokens)
        if not request.token_ids or allowed < 1:
            raise ValueError(
                f"prompt {request.stream.prompt_id}: a request needs a token to begin with and room for another, "
                f"not {len(request.token_ids)} and {allowed}"
            )
        if self.context is None:
            return allowed
        left = self.context - len(request.token_ids)
        if left < 1:
            raise ValueError(
                f"prompt {request.stream.prompt_id} has {len(request.token_ids)} tokens; "
                f"the model's context of {self.context} leaves no room for an answer"
            )
        return min(allowed, left)

    def reason(self, row: SequenceState) -> FinishReason | None:
        """Why the answer ends with its last token, or None."""
        if row.token_ids[-1] in self.stop_ids:
            return FinishReason.stop
        if self.stop:
            text = self.tokenizer.decode(row.token_ids[-self.tail :])
            if any(stop in text for stop in self.stop):
                return FinishReason.stop
        return FinishReason.length if len(row.token_ids) >= row.limit else None


def extend(rows: Sequence[SequenceState], logits: Tensor, sampling: SamplingParams, rule: StopRule) -> None:
    """Choose the next token of every row from its logits [n, V], and end the rows that are done."""
    keys = numpy.array([row.key for row in rows], dtype=numpy.uint64)
    positions = numpy.array([row.request.position + len(row.token_ids) for row in rows], dtype=numpy.uint64)
    numbers = torch.from_numpy(uniforms(keys, positions))
    if logits.device.type != "mps":
        numbers = numbers.to(logits.device)
    tokens, logprobs = choose(logits, numbers, sampling)
    for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        row.finished = rule.reason(row)
