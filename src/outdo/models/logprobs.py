"""Log-probabilities of chosen tokens and sums over the vocabulary, computed in parts so that [B, T, V] never exists.

Only this module shifts logits against the tokens that they predict: `predecessors` returns which position predicts
which token. Everywhere else in outdo, an index is that of a token.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from outdo.algorithms.vocabulary_sums import (
    VocabularySum,
    detached_entropy,
    log_probability,
    scaled,
    token_entropy,
    token_logprobs,
)
from outdo.models.limits import LOGIT_BYTES, LOGIT_COLUMNS, SUM_BYTES
from outdo.models.onednn import LINEAR, current_gradients, product

Head = Callable[[Tensor], Tensor]  # hidden states [N, H] -> logits [N, V]
CHUNK = 1024  # tokens of which a head, or a sum, has all logits at once


def predecessors(length: int, device: torch.device | None = None) -> Tensor:
    """Return the position whose logits predict token t, which is t - 1. [T] int64.

    Index 0 has no predecessor; it points at itself and must be masked.
    """
    return (torch.arange(length, device=device) - 1).clamp(min=0)


def top_tokens(logits: Tensor, temperature: Tensor | float, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` most probable tokens of softmax(logits / temperature) and their log-probabilities.

    [..., V] -> [..., K] int64 and [..., K] in nats, the most probable first; K is V where that is less than `count`.
    """
    values, token_ids = scaled(logits, temperature).topk(min(count, logits.shape[-1]))
    first = token_logprobs(logits, token_ids[..., 0], temperature)[..., None]  # [..., 1]
    return token_ids, torch.cat([first, values[..., 1:] - values[..., :1] + first], -1)


def sequence_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Compute the log-probabilities [B, T] of a causal model's input [B, T] from its logits [B, T, V].

    It is meant for training loops other than outdo's. Index t is about token t; index 0, which nothing predicts, is 0.
    """
    source = predecessors(token_ids.shape[1], token_ids.device)
    logprobs = token_logprobs(logits[:, source], token_ids, temperature)  # [B, T]
    return logprobs.where(torch.arange(token_ids.shape[1], device=token_ids.device) > 0, 0.0)


def chunked_scores(
    head: Head,
    hidden: Tensor,
    token_ids: Tensor,
    temperature: Tensor,
    *,
    sums: Sequence[VocabularySum] = (),
    data: Sequence[Sequence[Tensor]] | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, ...]:
    """Compute log-probabilities [N] of tokens that the hidden states `hidden` [N, H] predict, then each of `sums` [N].

    `data` has for each sum the tensors [N, ...] that it reads besides logits and temperature.

    The logits of at most `chunk` tokens exist at a time; unset, as many as are fastest. The backward pass computes them
    again, which costs one more product with the head and saves N × V floats for the lifetime of the graph.

    A head that is a `torch.nn.Linear` is cut along the vocabulary, into no less than `LOGIT_COLUMNS` columns; any other
    along the tokens. With autocast the products have its precision; sums over the vocabulary stay float32.

    The entropy of a linear head is computed with the log-probabilities. Any other sum gets all logits of some tokens,
    by a product of its own.
    """
    if isinstance(head, nn.Linear) and type(head).forward in (layer.forward for layer in LINEAR):  # no adapter
        return _scores_of_linear(head, hidden, token_ids, temperature, sums, data, chunk)
    all_sums, read = _together(sums, data)

    def scores(logits: Tensor, temperature: Tensor, token_ids: Tensor, *read: Tensor) -> tuple[Tensor, ...]:
        return token_logprobs(logits, token_ids, temperature), *all_sums(logits, temperature, *read)

    return _in_chunks(head, scores, chunk or CHUNK, hidden, temperature, token_ids, *read)


def _scores_of_linear(
    head: nn.Linear,
    hidden: Tensor,
    token_ids: Tensor,
    temperature: Tensor,
    sums: Sequence[VocabularySum],
    data: Sequence[Sequence[Tensor]] | None,
    chunk: int | None,
) -> tuple[Tensor, ...]:
    """See `chunked_scores`."""
    is_entropy = [compute is token_entropy or compute is detached_entropy for compute in sums]
    logprobs, entropies = _along_vocabulary(head, hidden, token_ids, temperature, any(is_entropy), chunk)
    others = [number for number, entropy in enumerate(is_entropy) if not entropy]
    of_others, read = _together([sums[number] for number in others], data and [data[number] for number in others])
    bytes_at_once = SUM_BYTES.get(hidden.device.type, SUM_BYTES["cuda"])
    fitting = bytes_at_once // (hidden.element_size() * len(head.weight))
    tokens = chunk or max(1, min(CHUNK, fitting))
    values = iter(_in_chunks(head, of_others, tokens, hidden, temperature, *read) if others else ())
    return logprobs, *(
        next(values) if not entropy else entropies if compute is token_entropy else entropies.detach()
        for compute, entropy in zip(sums, is_entropy, strict=True)
    )


def _together(
    sums: Sequence[VocabularySum], data: Sequence[Sequence[Tensor]] | None
) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """Return a function `(logits, temperature, *read)` that computes all sums, and what it reads: the data of all."""
    data = [()] * len(sums) if data is None else data
    ends = list(accumulate(map(len, data), initial=0))

    def compute(logits: Tensor, temperature: Tensor, *read: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            compute_sum(logits, temperature, *read[start:end])
            for compute_sum, (start, end) in zip(sums, pairwise(ends), strict=True)
        )

    return compute, [tensor for tensors in data for tensor in tensors]


def _in_chunks(
    head: Head, compute: Callable[..., tuple[Tensor, ...]], chunk: int, hidden: Tensor, *rows: Tensor
) -> tuple[Tensor, ...]:
    """Call `compute` with the logits of `chunk` hidden states at a time and the same `rows`; join what it returns."""

    def of_chunk(hidden: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        return compute(head(hidden), *rows)

    several = torch.is_grad_enabled() and len(hidden) > chunk
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, max(1, len(hidden)), chunk):
        part = [tensor[start : start + chunk] for tensor in (hidden, *rows)]
        parts.append(checkpoint(of_chunk, *part, use_reentrant=False) if several else of_chunk(*part))
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _along_vocabulary(
    head: nn.Linear, hidden: Tensor, token_ids: Tensor, temperature: Tensor, entropy: bool, chunk: int | None
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies [N]; without `entropy` the latter are 0."""
    kind, weight = hidden.device.type, head.weight
    float32 = torch.promote_types(weight.dtype, torch.float32)  # of a float64 model, float64
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else float32
    with torch.autocast(kind, enabled=False):
        hidden = hidden.to(float32)
        if head.bias is not None:  # as one more column, so that only products are left
            hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)  # [N, H + 1]
            weight = torch.cat([weight, head.bias[:, None]], 1)  # [V, H + 1]
        hidden = hidden / temperature.to(hidden.dtype)[:, None]  # the same as logits / temperature
        bytes_at_once = LOGIT_BYTES.get(kind, LOGIT_BYTES["cuda"])
        logits = chunk * len(weight) if chunk else bytes_at_once // hidden.element_size()
        columns = min(len(weight), max(LOGIT_COLUMNS, logits // max(1, len(hidden))))
        return _LinearScores.apply(hidden, weight, token_ids, columns, dtype, entropy)


class _LinearScores(torch.autograd.Function):
    """Compute log softmax(h Wᵀ) at the chosen tokens, and its entropy H, some columns of the vocabulary at a time.

    The forward pass accumulates two sums along the vocabulary without the chosen token t, with m the greatest of these
    logits so far: Z = Σ_{v≠t} exp(z_v - m) and S = Σ_{v≠t} exp(z_v - m) (z_v - m). At the end d = z_t - m - log Z are
    the log-odds of the token, log p_t = -log(1 + exp(-d)), and with q = 1 - p_t

        H = -p_t log p_t - q log q + q (log Z - S / Z)

    (Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867, sum over all tokens; why t
    is left out, `token_logprobs` says.) The backward pass computes the N × V logits again:
    ∂ log p_t / ∂z_v = [v = t] - p_v and ∂H / ∂z_v = -p_v (log p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, token_ids: Tensor, columns: int, dtype: torch.dtype, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        chosen, z, s = (hidden.new_zeros(len(hidden)) for _ in range(3))
        peak = torch.full_like(z, torch.finfo(z.dtype).min)
        low_precision, buffer = hidden.to(dtype), _buffer(hidden, columns if entropy else 0)
        for start in range(0, len(weight), columns):
            part = weight[start : start + columns].to(dtype)
            logits = product(low_precision, part.T).to(hidden.dtype)  # [N, columns]
            inside, at = _columns_in_part(token_ids, start, len(part))
            chosen = torch.where(inside, logits.gather(1, at)[:, 0], chosen)
            _replace(logits, at, inside, torch.full_like(chosen, -torch.inf))
            higher = torch.maximum(peak, logits.amax(1))
            shift, peak = peak - higher, higher
            logits.sub_(peak[:, None])
            weights = torch.exp(logits, out=buffer[: logits.numel()].view_as(logits) if entropy else logits)
            shrink = shift.exp()
            if entropy:
                _replace(logits, at, inside, torch.zeros_like(chosen))  # -inf times a weight of 0 is NaN
                s = (s + shift * z) * shrink + logits.mul_(weights).sum(1)
            z = z * shrink + weights.sum(1)
        odds = chosen - peak - z.log()  # d
        logprobs = log_probability(chosen, odds)
        entropies = _entropy(logprobs, odds, z.log() - s / z) if entropy else s
        ctx.save_for_backward(hidden, weight, token_ids, chosen - logprobs, logprobs, entropies)
        ctx.columns, ctx.dtype, ctx.gradients = columns, dtype, current_gradients()
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, token_ids, log_total, chosen_logprobs, entropies = ctx.saved_tensors
        grad_logprobs = torch.zeros_like(log_total) if grad_logprobs is None else grad_logprobs
        grad_chosen = -grad_logprobs * chosen_logprobs.expm1()  # [N], by the logit of the token: 1 - p_t
        if grad_entropies is not None:
            grad_chosen -= grad_entropies * chosen_logprobs.exp() * (chosen_logprobs + entropies)
        low_precision, grad_hidden = hidden.to(ctx.dtype), torch.zeros_like(hidden)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        buffer = _buffer(hidden, 0 if grad_entropies is None else ctx.columns)
        for start in range(0, len(weight), ctx.columns):
            part = weight[start : start + ctx.columns].to(ctx.dtype)
            logprobs = product(low_precision, part.T).to(hidden.dtype).sub_(log_total[:, None])  # [N, columns]
            if grad_entropies is None:
                grad_logits = logprobs.exp_().mul_(-grad_logprobs[:, None])
            else:
                grad_logits = torch.add(logprobs, entropies[:, None], out=buffer[: logprobs.numel()].view_as(logprobs))
                grad_logits.mul_(grad_entropies[:, None])
                grad_logits.add_(grad_logprobs[:, None]).mul_(logprobs.exp_()).neg_()
            inside, at = _columns_in_part(token_ids, start, len(part))
            _replace(grad_logits, at, inside, grad_chosen)
            grad_logits = grad_logits.to(ctx.dtype)
            grad_hidden += product(grad_logits, part, ctx.gradients.input)
            if grad_weight is not None:
                part_of_gradient = product(grad_logits.T, low_precision, ctx.gradients.weight)
                grad_weight[start : start + ctx.columns] = part_of_gradient
        return grad_hidden, grad_weight, None, None, None, None


def _entropy(logprobs: Tensor, odds: Tensor, others: Tensor) -> Tensor:
    """Return the entropy [N] of a distribution from log p and log-odds of one token, and of all others."""
    return -logprobs.exp() * logprobs - logprobs.expm1() * (others - logsigmoid(-odds))


def _replace(matrix: Tensor, at: Tensor, inside: Tensor, values: Tensor) -> None:
    """Write values [N] into the column `at` [N, 1] of each row of `matrix` [N, columns] that is `inside` [N]."""
    matrix.scatter_(1, at, torch.where(inside, values, matrix.gather(1, at)[:, 0])[:, None])


def _buffer(hidden: Tensor, columns: int) -> Tensor:
    """Allocate a buffer once: memory of this size goes back to the system when it is freed, and is slow to allocate."""
    return hidden.new_empty(len(hidden) * columns)


def _columns_in_part(token_ids: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Return which tokens are in a part of the vocabulary [N], and their column; any column if they are not [N, 1]."""
    at = token_ids - start
    return (at >= 0) & (at < width), at.clamp(0, width - 1)[:, None]
