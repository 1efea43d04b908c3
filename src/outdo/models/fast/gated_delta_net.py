"""The gated delta nets of Qwen3-Next, Qwen3.5 and OLMo-Hybrid."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
        known = _names(module) is not None and getattr(module, "activation", None) == "silu"
        return known and mixes_no_channels(module.get_submodule("conv1d"))

    @property
    def names(self) -> "Names":
        """How the parts of the module are called."""
        names = _names(self.module)
        assert names is not None
        return names

    def readers(self) -> Sequence[nn.Module]:
        return [self.module.get_submodule(name) for name in self.names.projections]

    @torch.compiler.disable  # each batch has other sequences
    def forward(self, hidden_states: Tensor, *, layout: Layout, **options: Any) -> Tensor:
        module, names = self.module, self.names
        x, b, a, z = names.arranged(module, *onednn.together(hidden_states, *self.readers()))
        y = layout.scan(torch.cat([x, b, a], -1), self)  # [1, N, heads dv]
        norm, out = module.get_submodule(names.norm), module.get_submodule(names.out)
        normal = norm(y.reshape(-1, module.head_v_dim), z.reshape(-1, module.head_v_dim))
        return out(normal.view_as(y))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.module.num_v_heads, self.module.head_k_dim, self.module.head_v_dim

    def tokens(self, convolved: Tensor, others: Tensor) -> Tokens:
        module, (heads, of_key, of_value) = self.module, self.shape
        keys = module.num_k_heads * of_key
        query, key, value = convolved.split([keys, keys, heads * of_value], -1)
        query, key = (normalised(by_head(part, module.num_k_heads, heads)) for part in (query, key))
        b, a = others.transpose(1, 2).chunk(2, 1)  # [R, heads, L]
        log_decay = -wide(module.A_log).exp()[:, None] * softplus(a + module.dt_bias[:, None])
        return Tokens(
            query=query * of_key**-0.5,
            key=key,
            value=by_head(value, heads, heads),
            log_decay=log_decay[..., None],
            rate=sigmoid(b) * (2 if getattr(module, "allow_neg_eigval", False) else 1),
        )


def normalised(part: Tensor) -> Tensor:
    """Divide keys or queries [..., d] by their lengths."""
    return part * (part.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


class Names(NamedTuple):
    """How the parts of a module are called, beside its `conv1d`."""

    projections: tuple[str, ...]
    arranged: Callable[..., tuple[Tensor, ...]]  # x, b, a and z [1, N, ...] of a module and its projections
    norm: str = "norm"
    out: str = "out_proj"


def _interleaved(module: Any, qkvz: Tensor, ba: Tensor) -> tuple[Tensor, ...]:
    """The parts of each key head are side by side."""
    keys, values = module.head_k_dim, module.head_v_dim * module.num_v_heads // module.num_k_heads
    q, k, v, z = qkvz.unflatten(-1, (module.num_k_heads, -1)).split([keys, keys, values, values], -1)
    b, a = ba.unflatten(-1, (module.num_k_heads, -1)).chunk(2, -1)
    return torch.cat([q.flatten(2), k.flatten(2), v.flatten(2)], -1), b.flatten(2), a.flatten(2), z.flatten(2)


def _as_they_are(module: Any, x: Tensor, b: Tensor, a: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return x, b, a, z


def _separate(module: Any, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return torch.cat([q, k, v], -1), *others


KNOWN = (
    Names(("in_proj_qkvz", "in_proj_ba"), _interleaved),  # Qwen3-Next
    Names(("in_proj_qkv", "in_proj_b", "in_proj_a", "in_proj_z"), _as_they_are),  # Qwen3.5
    Names(("q_proj", "k_proj", "v_proj", "b_proj", "a_proj", "g_proj"), _separate, "o_norm", "o_proj"),  # OLMo-Hybrid
)


def _names(module: nn.Module) -> Names | None:
    """Return how the parts of a module are called, if it has those of a gated delta net and no others."""
    parts = {name for name, _ in module.named_children()}
    return next((names for names in KNOWN if parts == {*names.projections, "conv1d", names.norm, names.out}), None)
