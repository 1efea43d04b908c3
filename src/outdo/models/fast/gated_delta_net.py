"""The gated delta nets of Qwen3-Next, Qwen3.5 and OLMo-Hybrid, whose state is a matrix in each head."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from outdo.models import onednn
from outdo.models.fast.layout import Layout, State, StatefulLayer
from outdo.models.fast.short_convolution import convolve, inputs_before_the_first, mixes_no_channels

CHUNK = 32
"""Tokens of a sequence that `scan` computes together."""

EPSILON = 1e-6
"""What modules add to the squared length of keys and queries."""


class GatedDeltaNet(StatefulLayer):
    """A matrix S [dk, dv] in each head; each token lets it fade, and corrects what it returns for the token's key.

        Sₜ = αₜ Sₜ₋₁ + kₜ δₜᵀ,   δₜ = βₜ (vₜ - αₜ Sₜ₋₁ᵀ kₜ),   yₜ = Sₜᵀ qₜ / √dk
        α = exp(-exp(A) softplus(a + a₀)),   β = σ(b), or 2 σ(b)

    (Yang, Kautz and Hatamizadeh, arXiv 2412.06464.) q, k and v are silu(conv(x)), q and k are then divided by their
    lengths; x, a, b and z are linear in the hidden state. The layer returns out(norm(y, z)), by the module's own norm.
    Several heads may read one key and one query. Before the first token S is 0.

    The state is the last K - 1 inputs x of the convolution, [R, K - 1, C], and S, [R, heads, dk, dv]. As in the module,
    it is computed in float32 at least.
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

    def begin(self, inputs: Tensor) -> State:
        module, wide = self.module, _wide(inputs)
        zeros = wide.new_zeros(len(wide), module.num_v_heads, module.head_k_dim, module.head_v_dim)
        return inputs_before_the_first(module.conv1d, wide[..., : module.conv1d.in_channels]), zeros

    def scan(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        return self._scan(inputs, lengths, state, by_chunks)

    def scan_steps(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        """See `StatefulLayer.scan_steps`. A sum over a chunk depends on where the chunk begins."""
        return self._scan(inputs, lengths, state, by_tokens)

    def _scan(
        self, inputs: Tensor, lengths: Tensor | None, state: State, recurrence: "Recurrence"
    ) -> tuple[Tensor, State]:
        before, matrix = state
        with torch.autocast(inputs.device.type, enabled=False):
            tokens, after = self._tokens(_wide(inputs), lengths, before)
            output, matrix = recurrence(tokens, matrix)
        return output.transpose(1, 2).flatten(2).to(inputs.dtype), (after, matrix)

    def _tokens(self, inputs: Tensor, lengths: Tensor | None, before: Tensor) -> tuple["Tokens", Tensor]:
        """Return what the recurrence reads of some tokens, and the last inputs of the convolution."""
        module = self.module
        heads, key_heads = module.num_v_heads, module.num_k_heads
        x, b, a = inputs.split([module.conv1d.in_channels, heads, heads], -1)
        x, after = convolve(module.conv1d, x, lengths, before)
        width = key_heads * module.head_k_dim
        query, key, value = (x * _sigmoid(x)).split([width, width, heads * module.head_v_dim], -1)
        query, key = (_by_head(part, key_heads).repeat_interleave(heads // key_heads, 1) for part in (query, key))
        rate = _sigmoid(b) * (2 if getattr(module, "allow_neg_eigval", False) else 1)
        log_decay = -_wide(module.A_log).exp() * _softplus(a + module.dt_bias)
        if lengths is not None:
            real = torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]  # [R, L]
            rate, log_decay = rate * real[..., None], log_decay * real[..., None]  # S stays on padding
        tokens = Tokens(
            query=_normalised(query) * module.head_k_dim**-0.5,
            key=_normalised(key),
            value=_by_head(value, heads),
            rate=rate.transpose(1, 2),
            log_decay=log_decay.transpose(1, 2),
        )
        return tokens, after


class Tokens(NamedTuple):
    """What the recurrence reads of L tokens of R sequences."""

    query: Tensor  # [R, heads, L, dk] q / √dk
    key: Tensor  # [R, heads, L, dk]
    value: Tensor  # [R, heads, L, dv]
    rate: Tensor  # [R, heads, L] β
    log_decay: Tensor  # [R, heads, L] log α


Recurrence = Callable[[Tokens, Tensor], tuple[Tensor, Tensor]]
"""From tokens and the S [R, heads, dk, dv] before them to y [R, heads, L, dv] and the S after them."""


def by_tokens(tokens: Tokens, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the recurrence token by token: few and small operators for one token."""
    decays = tokens.log_decay.exp()[..., None, None]  # [R, heads, L, 1, 1]
    reads = torch.stack([tokens.query, tokens.key], 3)  # [R, heads, L, 2, dk]
    products = (tokens.query * tokens.key).sum(-1, keepdim=True)
    parts = reads, tokens.key, tokens.value, tokens.rate[..., None], decays, products
    outputs: list[Tensor] = []
    for read, key, value, rate, decay, product in zip(*(part.unbind(2) for part in parts), strict=True):
        by_query, by_key = (read @ matrix * decay).unbind(2)  # from the faded S, at once
        change = (value - by_key) * rate
        outputs.append(by_query + product * change)
        matrix = torch.addcmul(matrix * decay, key[..., None], change[..., None, :])
    return torch.stack(outputs, 2), matrix


def by_chunks(tokens: Tokens, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the recurrence by matrix products over chunks of tokens.

    Within a chunk that begins with S, let γₜ be the product of α up to token t, and Gₜᵢ = γₜ / γᵢ for i ≤ t. Then

        (I + L) Δ = diag(β) (V - diag(γ) K S),   L = diag(β) (K Kᵀ ∘ G) below its diagonal
        Y = diag(γ) Q S + (Q Kᵀ ∘ G) Δ,          S' = γ S + (diag(γ / γₜ) K)ᵀ Δ   with the γ of the last token
    """
    length = tokens.value.shape[2]
    chunk = min(CHUNK, length)
    query, key, value, rate, log_decay = (_in_chunks(part, chunk) for part in tokens)  # [R, heads, n, chunk, ...]
    total = log_decay.cumsum(-1)  # log γ
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=total.device).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(later, -torch.inf).exp()  # G
    lower = rate[..., None] * (key @ key.transpose(-1, -2)) * decay
    right_sides = rate[..., None] * torch.cat([value, key * total.exp()[..., None]], -1)
    solved = torch.linalg.solve_triangular(lower, right_sides, upper=False, unitriangular=True)
    parts = (
        *solved.split([value.shape[-1], key.shape[-1]], -1),  # (I + L)⁻¹ diag(β) V, and of diag(γ) K
        query * total.exp()[..., None],
        (query @ key.transpose(-1, -2)) * decay,
        key * (total[..., -1:] - total).exp()[..., None],
        total[..., -1].exp()[..., None, None],
    )
    outputs: list[Tensor] = []
    for of_values, of_keys, read, weights, written, fading in zip(*(part.unbind(2) for part in parts), strict=True):
        change = of_values - of_keys @ matrix  # Δ
        outputs.append(read @ matrix + weights @ change)
        matrix = fading * matrix + written.transpose(-1, -2) @ change
    return torch.cat(outputs, 2)[:, :, :length], matrix


def _in_chunks(part: Tensor, chunk: int) -> Tensor:
    """[R, heads, L, ...] -> [R, heads, n, chunk, ...], 0 on what is added at the end."""
    widths = (0, 0) * (part.dim() - 3) + (0, -part.shape[2] % chunk)
    return pad(part, widths).unflatten(2, (-1, chunk))


def _by_head(part: Tensor, heads: int) -> Tensor:
    """[R, L, heads d] -> [R, heads, L, d]."""
    return part.unflatten(-1, (heads, -1)).transpose(1, 2)


def _normalised(part: Tensor) -> Tensor:
    return part * (part.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _sigmoid(x: Tensor) -> Tensor:
    """σ(x). On a CPU, the bits of `torch.sigmoid` depend on where in a tensor a number is; those of tanh do not."""
    return (1 + torch.tanh(x / 2)) / 2


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), of which the same is true."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


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
