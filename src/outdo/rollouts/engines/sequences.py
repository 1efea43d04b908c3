"""The sequences being sampled: their tokens so far, how the next token is sampled, and when they end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, FinishReason, Request
from outdo.utils.errors import NonFiniteWeightsError
from outdo.utils.rng import uniforms

VOCABULARY_BLOCK = 256
"""Tokens whose probabilities are added up first, in a large vocabulary."""

LARGE_VOCABULARY = 2**13
"""Tokens of a vocabulary from which this is faster."""


@dataclass(slots=True)
class SequenceState:
    """One answer that is being sampled."""

    request: Request
    stream_key: int  # `rng.stream_key` of the seed and the request's stream: of its random numbers
    max_tokens: int  # the largest number of tokens of the answer
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    routes: Tensor | None = None  # see `Completion.routes`
    tokens_read: int | None = None  # see `Completion.tokens_read`

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the first turn of the episode, which are computed at once."""
        return self.request.token_ids[: self.request.prompt_length]

    def completion(self, policy_version: int) -> Completion:
        """Return the answer, now that it is finished."""
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason or FinishReason.abort,
            policy_version=policy_version,
            routes=self.routes,
            tokens_read=self.tokens_read,
        )


class StopRule:
    """Ends an answer at an end-of-sequence token, a stop string, the token limit, or the end of the context."""

    def __init__(self, policy: PolicyView, sampling: SamplingParams) -> None:
        self.stop_ids = frozenset(policy.end_ids) | frozenset(sampling.stop_token_ids)
        self.stop = sampling.stop
        self.tokenizer = policy.tokenizer
        self.context = policy.context
        # A stop string may begin inside a token, and each of its tokens has at least one byte.
        self.tail = max((len(text.encode()) for text in self.stop), default=0) + 1
        self.max_tokens = sampling.max_tokens

    def max_new_tokens(self, request: Request) -> int:
        """Return the largest length of an answer: by the request, by the sampling settings, and by the context."""
        allowed = min(request.max_tokens, self.max_tokens)
        if not request.token_ids or allowed < 1:
            raise ValueError(
                f"prompt {request.stream.prompt_id}: a request needs at least 1 prompt token and a max_tokens of 1 or "
                f"more, not {len(request.token_ids)} and {allowed}"
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

    def finish_reason(self, row: SequenceState) -> FinishReason | None:
        """Return why the answer ends with its last token; None if it continues."""
        if row.token_ids[-1] in self.stop_ids:
            return FinishReason.stop
        if self.stop:
            text = self.tokenizer.decode(row.token_ids[-self.tail :])
            if any(stop in text for stop in self.stop):
                return FinishReason.stop
        return FinishReason.length if len(row.token_ids) >= row.max_tokens else None


def append_next_tokens(rows: Sequence[SequenceState], logits: Tensor, sampling: SamplingParams, rule: StopRule) -> None:
    """Sample the next token of every row from its logits [n, V], and set the finish reason of rows that end.

    Raises `NonFiniteWeightsError`, with the step and the question, if logits are not finite.
    """
    numbers = torch.from_numpy(numbers_of(rows, 1)[0])
    if logits.device.type != "mps":
        numbers = numbers.to(logits.device)
    tokens, logprobs = sample_tokens(logits, numbers, sampling)
    for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        append(row, [token], [logprob], rule)


def numbers_of(rows: Sequence[SequenceState], count: int) -> NDArray[numpy.float64]:
    """Return the random numbers that choose the next `count` tokens of each row, [count, n]."""
    keys = numpy.array([row.stream_key for row in rows], dtype=numpy.uint64)
    next_ones = numpy.array([row.request.position + len(row.token_ids) for row in rows], dtype=numpy.uint64)
    positions = next_ones + numpy.arange(count, dtype=numpy.uint64)[:, None]
    return uniforms(numpy.broadcast_to(keys, positions.shape), positions)


def append(row: SequenceState, tokens: Sequence[int], logprobs: Sequence[float], rule: StopRule) -> int:
    """Append sampled tokens to a row until it ends; return how many, and set the finish reason.

    Raises `NonFiniteWeightsError` if a log-probability is NaN.
    """
    for count, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True), start=1):
        if math.isnan(logprob):
            raise NonFiniteWeightsError(_not_finite(row))
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        row.finish_reason = rule.finish_reason(row)
        if row.finish_reason is not None:
            return count
    return len(tokens)


def _not_finite(row: SequenceState) -> str:
    stream, tokens = row.request.stream, len(row.token_ids)
    return (
        f"step {stream.step} ({stream.purpose}): the logits of the model are not finite after {tokens} tokens of an "
        f"answer to question {stream.prompt_id}. Its weights are broken or too large, most often by a learning rate "
        "(optim.lr) that is too high; continue from an earlier checkpoint with a lower one"
    )


def sample_tokens(logits: Tensor, numbers: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the next tokens [n] and their log-probabilities [n], from logits [n, V] and uniform numbers [n].

    Log-probabilities are at the sampling temperature over the whole vocabulary, before any filter (at temperature 0: at
    temperature 1). The result of a row depends only on that row. The log-probability is NaN if logits of the row are
    NaN or +inf, or all of them are -inf.
    """
    probabilities = (logits.float() / (sampling.temperature or 1.0)).softmax(-1)
    if sampling.temperature == 0:
        tokens = probabilities.argmax(-1, keepdim=True)
    else:
        tokens = _draw(apply_filters(probabilities, sampling), numbers)
    return tokens.squeeze(1), _logprobs(probabilities, tokens)


def _logprobs(probabilities: Tensor, tokens: Tensor) -> Tensor:
    """Return log p of a token [n, 1] of each row, and set its probability to 0. [n]

    A number near 1 has few digits left for 1 - p. From 1/2 on it is the sum over all other tokens that counts, as in
    `models.logprobs.token_logprobs`: log p = -log(1 + Σ_{v≠t} p_v / p_t).
    """
    chosen = probabilities.gather(-1, tokens).squeeze(1)
    others = _blocks(probabilities.scatter_(-1, tokens, 0.0)).sum(-1).sum(-1)
    return torch.where(chosen > 0.5, -(others / chosen).log1p(), chosen.log())


def _draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return the first token of each row whose cumulative weight exceeds the share `numbers` [n] of the total, [n, 1].

    It is never a token of weight 0. Of a large vocabulary only the sums of blocks are added up, and then the weights of
    the block in which the token is: sums of all weights in float64 would be twice as large as the logits.
    """
    wide = torch.float32 if weights.device.type == "mps" else torch.float64
    numbers = numbers.to(wide)[:, None]
    vocabulary = weights.shape[1]
    if vocabulary < LARGE_VOCABULARY:
        cumulative = weights.cumsum(-1, dtype=wide)
        return _first_beyond(cumulative, numbers * cumulative[:, -1:])
    blocks = _blocks(weights)
    sums = blocks.sum(-1).to(wide)  # [n, blocks]
    cumulative = sums.cumsum(-1)
    threshold = numbers * cumulative[:, -1:]
    block = _first_beyond(cumulative, threshold)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, VOCABULARY_BLOCK)).squeeze(1).cumsum(-1, dtype=wide)
    first = _first_beyond(inside, threshold - (cumulative - sums).gather(1, block))
    return (block * VOCABULARY_BLOCK + first).clamp_(max=vocabulary - 1)


def _blocks(weights: Tensor) -> Tensor:
    """Return the weights of each row [n, V] in blocks [n, blocks, `VOCABULARY_BLOCK`].

    Sums of blocks depend on their row alone: torch adds up one long row in other parts than several of them.
    """
    return pad(weights, (0, -weights.shape[1] % VOCABULARY_BLOCK)).unflatten(-1, (-1, VOCABULARY_BLOCK))


def _first_beyond(cumulative: Tensor, threshold: Tensor) -> Tensor:
    """Return the first column of `cumulative` [n, m] that exceeds the `threshold` [n, 1]; the last column if it is NaN.

    A threshold that rounding has made the total or more is taken as the number before it.
    """
    total = cumulative[:, -1:]
    below = torch.minimum(threshold, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, below, right=True).clamp_(max=cumulative.shape[1] - 1)


def apply_filters(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the probabilities [n, V] with those of excluded tokens set to 0; the likeliest token is never excluded."""
    if sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        return probabilities
    ranked, order = probabilities.sort(stable=True, dim=-1, descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        likely = ranked * keep
        keep &= likely.cumsum(-1) - likely < sampling.top_p * likely.sum(-1, keepdim=True)
    keep &= ranked >= sampling.min_p * ranked[:, :1]
    keep[:, 0] = True
    return probabilities * torch.zeros_like(keep).scatter(-1, order, keep)
