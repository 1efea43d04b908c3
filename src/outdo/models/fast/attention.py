"""Attention of outdo's own, which training and sampling with a shared layout put in place of the model's."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from outdo.models.fast.layout import Rule, UnknownAttentionError

SINK_CHANNELS = 8
"""Channels that a sink adds to each head: kernels of an accelerator read multiples of eight."""


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, rule: Rule) -> Tensor:
    """Compute softmax(scaling QKᵀ) V: query [R, heads, Lq, d], key and value [R, kv_heads, Lk, d] -> [R, heads, Lq, d].

    `allowed` [R, 1, Lq, Lk] is True where a query may read a key (see `within`), or, without a soft cap, what is added
    to the scores, 0 or -∞; None means causal, Lq = Lk. With sinks it has one more column for them.

    Raises `UnknownAttentionError` for a soft cap and sinks together.
    """
    if rule.softcap is not None:
        if rule.sinks is not None:
            raise UnknownAttentionError("it has a soft cap and attention sinks")
        return _capped_attention(query, key, value, allowed, rule.scaling, rule.softcap)
    width = value.shape[-1]
    if rule.sinks is not None:
        query, key, value = _with_sink(query, key, value, rule.sinks / rule.scaling)
    # With a mask and grouped heads, CUDA has only the slow kernel that writes all scores to memory.
    if query.is_cuda and allowed is not None:
        key, value = _repeated(key, query), _repeated(value, query)
    causal, grouped = allowed is None, query.shape[1] != key.shape[1]
    output = scaled_dot_product_attention(
        query, key, value, allowed, is_causal=causal, scale=rule.scaling, enable_gqa=grouped
    )
    return output if rule.sinks is None else output[..., :width]


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scaling: float, softcap: float
) -> Tensor:
    key, value = _repeated(key, query), _repeated(value, query)
    if allowed is None:
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    scores = softcap * torch.tanh(query @ key.transpose(-1, -2) * scaling / softcap)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1).to(value.dtype) @ value


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Repeat the heads of keys or values until there are as many as of queries."""
    repeats = query.shape[1] // x.shape[1]
    return x.repeat_interleave(repeats, 1) if repeats > 1 else x


def _with_sink(query: Tensor, key: Tensor, value: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add a key whose value is 0: its product with any query is the score [heads] of the head.

    It has 1 in a channel of its own, which is 0 in all other keys, and `score` in the queries. So every kernel computes
    it, also with fewer heads of keys than of queries, and its gradient.
    """
    of_queries = pad(score.to(query.dtype)[:, None, None], (0, SINK_CHANNELS - 1))  # [heads, 1, channels]
    query = torch.cat([query, of_queries.expand(*query.shape[:-1], -1)], -1)
    key, value = (pad(x, (0, SINK_CHANNELS, 0, 1)) for x in (key, value))
    key[:, :, -1, -SINK_CHANNELS] = 1
    return query, key, value


def within(query_at: Tensor, key_at: Tensor, real: Tensor, rule: Rule) -> Tensor:
    """Return which keys a query may read: real, not later, in the window: [R, Lq], [R, Lk] -> [R, 1, Lq, Lk].

    Sinks are one more key, the last, which every query reads.
    """
    distance = query_at[:, None, :, None] - key_at[:, None, None, :]
    allowed = (distance >= 0) & real[:, None, None, :]
    if rule.window is not None:
        allowed &= distance < rule.window
    return allowed if rule.sinks is None else pad(allowed, (0, 1), value=True)
