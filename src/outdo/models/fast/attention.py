"""Attention of outdo's own, which training and sampling with a shared layout put in place of the model's."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outdo.models.fast.layout import Rule


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, rule: Rule) -> Tensor:
    """Compute softmax(scaling QKᵀ) V: query [R, heads, Lq, d], key and value [R, kv_heads, Lk, d] -> [R, heads, Lq, d].

    `allowed` [R, 1, Lq, Lk] is True where a query may read a key (see `within`), or, without a soft cap, what is added
    to the scores, 0 or -∞; None means causal, Lq = Lk.
    """
    repeats = query.shape[1] // key.shape[1]
    # With a mask and grouped heads, CUDA has only the slow kernel that writes all scores to memory.
    if repeats > 1 and (rule.softcap is not None or (query.is_cuda and allowed is not None)):
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if rule.softcap is None:
        causal, grouped = allowed is None, query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(
            query, key, value, allowed, is_causal=causal, scale=rule.scaling, enable_gqa=grouped
        )
    if allowed is None:
        allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    scores = rule.softcap * torch.tanh(query @ key.transpose(-1, -2) * rule.scaling / rule.softcap)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1).to(value.dtype) @ value


def within(query_at: Tensor, key_at: Tensor, real: Tensor, window: int | None) -> Tensor:
    """Return which keys a query may read: real, not later, in the window: [R, Lq], [R, Lk] -> [R, 1, Lq, Lk]."""
    distance = query_at[:, None, :, None] - key_at[:, None, None, :]
    allowed = (distance >= 0) & real[:, None, None, :]
    return allowed if window is None else allowed & (distance < window)
