"""The gated delta nets of Qwen3-Next, Qwen3.5 and OLMo-Hybrid."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from outdo.models import onednn
from outdo.models.fast.layout import Layout
from outdo.models.fast.recurrence import Recurrence, Tokens, by_head, sigmoid, softplus, wide
from outdo.models.fast.short_convolution import mixes_no_channels

EPSILON = 1e-6
"""What modules add to the squared length of keys and queries."""


class GatedDeltaNet(Recurrence):
    """The delta rule with α = exp(-exp(A) softplus(a + a₀)) and β = σ(b), or 2 σ(b).

    (Yang, Kautz and Hatamizadeh, arXiv 2412.06464.) q, k and v are silu(conv(x)), q and k are then divided by their
    lengths, and q by √dk; x, a, b and z are linear in the hidden state. The layer returns out(norm(y, z)), by the
    module's own norm. Several heads may read one key and one query.
    """

    @classmethod
    def computes(cls, module: nn.Module) -> bool:
        parts = dict(module.named_children())
        known = frozenset(parts) in PROJECTIONS and getattr(module, "activation", None) == "silu"
        return known and mixes_no_channels(parts["conv1d"])

    @torch.compiler.disable  # each batch has other sequences
    def forward(self, hidden_states: Tensor, *, layout: Layout, **options: Any) -> Tensor:
        module = self.module
        x, b, a, z = PROJECTIONS[frozenset(dict(module.named_children()))](module, hidden_states)
        y = layout.scan(torch.cat([x, b, a], -1), self)  # [1, N, heads dv]
        norm, out = (module.norm, module.out_proj) if hasattr(module, "norm") else (module.o_norm, module.o_proj)
        normal = norm(y.reshape(-1, module.head_v_dim), z.reshape(-1, module.head_v_dim))
        return out(normal.view_as(y))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.module.num_v_heads, self.module.head_k_dim, self.module.head_v_dim

    def tokens(self, convolved: Tensor, others: Tensor) -> Tokens:
        module, (heads, of_key, of_value) = self.module, self.shape
        keys = module.num_k_heads * of_key
        query, key, value = convolved.split([keys, keys, heads * of_value], -1)
        query, key = (_normalised(by_head(part, module.num_k_heads, heads)) for part in (query, key))
        b, a = others.transpose(1, 2).chunk(2, 1)  # [R, heads, L]
        return Tokens(
            query=query * of_key**-0.5,
            key=key,
            value=by_head(value, heads, heads),
            log_decay=-wide(module.A_log).exp()[:, None] * softplus(a + module.dt_bias[:, None]),
            rate=sigmoid(b) * (2 if getattr(module, "allow_neg_eigval", False) else 1),
        )


def _normalised(part: Tensor) -> Tensor:
    return part * (part.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def _interleaved(module: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """Of Qwen3-Next, whose projections have the parts of each key head side by side."""
    qkvz, ba = onednn.together(hidden_states, module.in_proj_qkvz, module.in_proj_ba)
    keys, values = module.head_k_dim, module.head_v_dim * module.num_v_heads // module.num_k_heads
    q, k, v, z = qkvz.unflatten(-1, (module.num_k_heads, -1)).split([keys, keys, values, values], -1)
    b, a = ba.unflatten(-1, (module.num_k_heads, -1)).chunk(2, -1)
    return torch.cat([q.flatten(2), k.flatten(2), v.flatten(2)], -1), b.flatten(2), a.flatten(2), z.flatten(2)


def _by_kind(module: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """Of Qwen3.5."""
    projections = module.in_proj_qkv, module.in_proj_b, module.in_proj_a, module.in_proj_z
    return tuple(onednn.together(hidden_states, *projections))


def _separate(module: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """Of OLMo-Hybrid."""
    projections = module.q_proj, module.k_proj, module.v_proj, module.b_proj, module.a_proj, module.g_proj
    q, k, v, *others = onednn.together(hidden_states, *projections)
    return torch.cat([q, k, v], -1), *others


PROJECTIONS: Mapping[frozenset[str], Callable[[Any, Tensor], tuple[Tensor, ...]]] = {
    frozenset({"conv1d", "in_proj_qkvz", "in_proj_ba", "norm", "out_proj"}): _interleaved,
    frozenset({"conv1d", "in_proj_qkv", "in_proj_b", "in_proj_a", "in_proj_z", "norm", "out_proj"}): _by_kind,
    frozenset({"conv1d", *(f"{name}_proj" for name in "qkvbago"), "o_norm"}): _separate,
}
"""The parts of a module: how it computes x, b, a and z [1, N, ...] of hidden states [1, N, H]."""
