"""The Mamba 2 layers of Nemotron-H, Bamba, Granite 4, Falcon-H1 and Zamba 2."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from outdo.models.fast.layout import Layout
from outdo.models.fast.recurrence import Recurrence, Tokens, by_head, softplus, wide
from outdo.models.fast.short_convolution import mixes_no_channels

PARTS = {"act", "conv1d", "in_proj", "norm", "out_proj"}


class Mamba2(Recurrence):
    """A state space with α = exp(-Δ exp(A)), v = Δ x, and Δ = softplus(d + d₀), within limits.

    (Dao and Gu, arXiv 2405.21060.) x, k and q, their B and C, are silu(conv(u)); u, d and z are linear in the hidden
    state. The layer returns out(norm(y + D x, z)), by the module's own norm, or out((y + D x) silu(z)) where it has
    none. Several heads may read one B and one C.
    """

    @classmethod
    def computes(cls, module: nn.Module) -> bool:
        parts = dict(module.named_children())
        of_heads: Any = getattr(module, "A_log", None)  # Mamba 1 has a matrix
        known = set(parts) == PARTS and getattr(module, "activation", None) == "silu"
        return known and of_heads is not None and of_heads.dim() == 1 and mixes_no_channels(parts["conv1d"])

    @torch.compiler.disable  # each batch has other sequences
    def forward(self, hidden_states: Tensor, *, layout: Layout, **options: Any) -> Tensor:
        module = self.module
        if hasattr(module, "ssm_in_multiplier"):  # Falcon-H1
            projected = module.in_proj(hidden_states * module.ssm_in_multiplier) * module.mup_vector
        else:
            projected = module.in_proj(hidden_states)
        z, read = projected.split([module.intermediate_size, projected.shape[-1] - module.intermediate_size], -1)
        y = layout.scan(read, self)
        gated = y * silu(z) if isinstance(module.norm, nn.Identity) else module.norm(y, z)
        return module.out_proj(gated.to(hidden_states.dtype))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.module.num_heads, self.module.ssm_state_size, self.module.head_dim

    def tokens(self, convolved: Tensor, others: Tensor) -> Tokens:
        module, (heads, size, _) = self.module, self.shape
        groups = module.n_groups
        x, b, c = convolved.split([module.intermediate_size, groups * size, groups * size], -1)
        x = by_head(x, heads, heads)
        steps = softplus(others + module.dt_bias).clamp(*module.time_step_limit).transpose(1, 2)  # Δ [R, heads, L]
        return Tokens(
            query=by_head(c, groups, heads),
            key=by_head(b, groups, heads),
            value=x * steps[..., None],
            log_decay=(-wide(module.A_log).exp()[:, None] * steps)[..., None],
            direct=x * module.D[:, None, None],
        )
