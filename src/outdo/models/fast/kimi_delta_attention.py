"""Kimi's delta attention: the linear attention of Kimi Linear and Ling 3.0."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outdo.models import onednn
from outdo.models.fast.gated_delta_net import normalised
from outdo.models.fast.layout import Layout
from outdo.models.fast.recurrence import Recurrence, Tokens, by_head, sigmoid, softplus, wide
from outdo.models.fast.short_convolution import mixes_no_channels

PARTS = {"q_proj", "k_proj", "v_proj", "conv1d", "forget_gate", "b_proj", "o_norm", "o_proj"}
"""The parts of a module, beside the linear layers that make z."""

MAKE_Z = ("g_proj",), ("g_a_proj", "g_b_proj")
"""The linear layers that make z of the hidden states, one after the other: Ling 3.0's, Kimi Linear's."""

MAKE_A = ("f_proj",), ("f_a_proj", "f_b_proj")
"""Those of the forget gate that make a."""


class KimiDeltaAttention(Recurrence):
    """The delta rule with one α for each channel of the key, α = exp(-exp(A) softplus(a + a₀)), and β = σ(b).

    (Kimi Team, arXiv 2510.26692.) Where the module has a lower bound l of log α, α = exp(l σ(exp(A) (a + a₀))). q, k
    and v are silu(conv(x)), q and k are then divided by their lengths, and q by √dk; x, a, b and z are linear in the
    hidden state. The layer returns out(norm(y, z)), by the module's own norm.
    """

    @classmethod
    def computes(cls, module: nn.Module) -> bool:
        parts: Any = dict(module.named_children())
        known = any(set(parts) == PARTS | set(names) for names in MAKE_Z)
        return (
            known
            and getattr(module, "activation", None) == "silu"
            and any({name for name, _ in parts["forget_gate"].named_children()} == set(names) for names in MAKE_A)
            and mixes_no_channels(parts["conv1d"])
        )

    def readers(self) -> Sequence[nn.Module]:
        module = self.module
        return [module.q_proj, module.k_proj, module.v_proj, module.b_proj, self._make_a()[0], self._make_z()[0]]

    def _make_a(self) -> list[nn.Module]:
        return _those_of(self.module.forget_gate, MAKE_A)

    def _make_z(self) -> list[nn.Module]:
        return _those_of(self.module, MAKE_Z)

    @torch.compiler.disable  # each batch has other sequences
    def forward(self, hidden_states: Tensor, *, layout: Layout, **options: Any) -> Tensor:
        module = self.module
        q, k, v, b, a, z = onednn.together(hidden_states, *self.readers())
        for layer in self._make_a()[1:]:
            a = layer(a)
        for layer in self._make_z()[1:]:
            z = layer(z)
        y = layout.scan(torch.cat([q, k, v, a, b], -1), self)  # [1, N, heads d]
        by_heads = (1, -1, module.num_heads, module.head_dim)
        return module.o_proj(module.o_norm(y.view(by_heads), z.view(by_heads)).flatten(2))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.module.num_heads, self.module.head_dim, self.module.head_dim

    def tokens(self, convolved: Tensor, others: Tensor) -> Tokens:
        module, (heads, size, _) = self.module, self.shape
        gate = module.forget_gate
        query, key, value = (by_head(part, heads, heads) for part in convolved.chunk(3, -1))
        a, b = others.split([heads * size, heads], -1)
        a = by_head(a + gate.dt_bias, heads, heads)  # [R, heads, L, d]
        speed, bound = wide(gate.A_log).exp().view(-1, 1, 1), _lower_bound(gate)
        return Tokens(
            query=normalised(query) * size**-0.5,
            key=normalised(key),
            value=value,
            log_decay=-speed * softplus(a) if bound is None else bound * sigmoid(speed * a),
            rate=sigmoid(b).transpose(1, 2),
        )


def _those_of(module: nn.Module, alternatives: Sequence[Sequence[str]]) -> list[nn.Module]:
    """Return the parts of a module that the first of some names exist of."""
    names = next(names for names in alternatives if hasattr(module, names[0]))
    return [module.get_submodule(name) for name in names]


def _lower_bound(gate: Any) -> float | None:
    return gate.lower_bound if getattr(gate, "safe_gate", False) else None
