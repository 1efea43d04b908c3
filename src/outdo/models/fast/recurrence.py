"""Layers whose state is a matrix in each head, read by a query and written by a key and a value.

A short convolution makes queries, keys and values. Every family has another rule for what a token writes, and how fast
the matrix fades.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from outdo.models.fast.layout import State, StatefulLayer
from outdo.models.fast.short_convolution import convolve, inputs_before_the_first

CHUNK = 32
"""Tokens of a sequence that `scan` computes together."""


class Tokens(NamedTuple):
    """What a recurrence reads of L tokens of R sequences."""

    query: Tensor  # [R, heads, L, dk]
    key: Tensor  # [R, heads, L, dk]
    value: Tensor  # [R, heads, L, dv]
    log_decay: Tensor  # [R, heads, L, 1] log α; [R, heads, L, dk] of each channel of the key
    rate: Tensor | None = None  # [R, heads, L] β; None: values are written as they are
    direct: Tensor | None = None  # [R, heads, L, dv] what is added to y


class Recurrence(StatefulLayer):
    """Sₜ = αₜ Sₜ₋₁ + kₜ δₜᵀ and yₜ = Sₜᵀ qₜ in each head, with S [dk, dv] and 0 before the first token.

    What is written is δₜ = vₜ (a state space: Mamba 2), or the difference from what S returns for the key already, δₜ =
    βₜ (vₜ - (αₜ Sₜ₋₁)ᵀ kₜ) (the delta rule). αₜ is a number, or one for each row of S (Kimi's delta attention).

    The state is the last K - 1 inputs of the module's convolution, [R, K - 1, C], and S, [R, heads, dk, dv]. As in the
    modules, it is computed in float32 at least. What `scan` reads begins with the C inputs of the convolution.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of heads, dk and dv."""
        raise NotImplementedError

    def tokens(self, convolved: Tensor, others: Tensor) -> Tokens:
        """Return what the recurrence reads, of silu(conv(x)) [R, L, C] and the other numbers of each token."""
        raise NotImplementedError

    def begin(self, inputs: Tensor) -> State:
        first = wide(inputs)[..., : self.module.conv1d.in_channels]
        return inputs_before_the_first(self.module.conv1d, first), first.new_zeros(len(first), *self.shape)

    def scan(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        return self._scan(inputs, lengths, state, by_chunks)

    def scan_steps(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        """See `StatefulLayer.scan_steps`. A sum over a chunk has other bits, wherever the chunk begins."""
        return self._scan(inputs, lengths, state, by_tokens)

    def _scan(
        self,
        inputs: Tensor,
        lengths: Tensor | None,
        state: State,
        recur: Callable[[Tokens, Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, State]:
        before, matrix = state
        channels, length = self.module.conv1d.in_channels, inputs.shape[1]
        with torch.autocast(inputs.device.type, enabled=False):
            x, others = wide(inputs).split([channels, inputs.shape[2] - channels], -1)
            x, after = convolve(self.module.conv1d, x, lengths, before)
            tokens = self.tokens(x * sigmoid(x), others)
            if lengths is not None:  # padding writes nothing, and lets nothing fade
                real = (torch.arange(length, device=inputs.device) < lengths[:, None])[:, None, :, None]  # [R, 1, L, 1]
                tokens = tokens._replace(key=tokens.key * real, log_decay=tokens.log_decay * real)
            output, matrix = recur(tokens, matrix)
            if tokens.direct is not None:
                output = output + tokens.direct
        return output.transpose(1, 2).flatten(2).to(inputs.dtype), (after, matrix)


def by_tokens(tokens: Tokens, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute y [R, heads, L, dv] and the S after L tokens, token by token: few and small operators for one token."""
    query, key, value, log_decay, rate = tokens[:5]
    decays = log_decay.exp()  # [R, heads, L, 1 or dk]
    reads = query[..., None, :] if rate is None else torch.stack([query, key], 3)  # [R, heads, L, 1 or 2, dk]
    of_faded, products = reads * decays[..., None, :], (query * key).sum(-1, keepdim=True)
    outputs: list[Tensor] = []
    for number in range(value.shape[2]):
        by_query, *by_key = (of_faded[:, :, number] @ matrix).unbind(2)  # from the faded S, at once
        change = value[:, :, number]
        if rate is not None:
            change = (change - by_key[0]) * rate[:, :, number, None]
        outputs.append(by_query + products[:, :, number] * change)
        faded = matrix * decays[:, :, number, :, None]
        matrix = torch.addcmul(faded, key[:, :, number, :, None], change[..., None, :])
    return torch.stack(outputs, 2), matrix


def by_chunks(tokens: Tokens, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the same by matrix products over chunks of tokens (Yang, Kautz and Hatamizadeh, arXiv 2412.06464).

    Within a chunk that begins with S, let γₜ be the product of α up to token t, and (A Bᵀ ∘ G)ₜᵢ the sum over the
    channels of aₜ bᵢ γₜ / γᵢ for i ≤ t. Then

        Y = (γ Q) S + (Q Kᵀ ∘ G) Δ,   S' = γ S + (γ / γₜ K)ᵀ Δ   with the γ of the last token,
        (I + L) Δ = diag(β) (V - (γ K) S),   L = diag(β) (K Kᵀ ∘ G) below its diagonal   (or Δ = V)
    """
    length, of_heads = tokens.value.shape[2], tokens.log_decay.shape[-1] == 1
    chunk = min(CHUNK, length) if of_heads else CHUNK
    query, key, value, log_decay = (_in_chunks(part, chunk) for part in tokens[:4])  # [R, heads, n, chunk, ...]
    rate = None if tokens.rate is None else _in_chunks(tokens.rate, chunk)[..., None]
    total = log_decay.cumsum(-2)  # log γ
    of_queries, *lower = _weights(query, key, rate, total)
    parts = [query * total.exp(), of_queries, key * (total[..., -1:, :] - total).exp(), total[..., -1, :, None].exp()]
    if rate is None:
        parts.append(value)
    else:
        right_sides = rate * torch.cat([value, key * total.exp()], -1)
        solved = torch.linalg.solve_triangular(*lower, right_sides, upper=False, unitriangular=True)
        parts += solved.split([value.shape[-1], key.shape[-1]], -1)  # Δ is the first - the second S
    outputs: list[Tensor] = []
    for read, weights, written, fading, change, *of_keys in zip(*(part.unbind(2) for part in parts), strict=True):
        if of_keys:
            change = change - of_keys[0] @ matrix
        outputs.append(read @ matrix + weights @ change)
        matrix = fading * matrix + written.transpose(-1, -2) @ change
    return torch.cat(outputs, 2)[:, :, :length], matrix


def _weights(query: Tensor, key: Tensor, rate: Tensor | None, total: Tensor) -> Sequence[Tensor]:
    """Return Q Kᵀ ∘ G, and with β also L; log γ is [..., L, 1], or [..., L, dk] of each channel."""
    keys, length = key.transpose(-1, -2), total.shape[-2]
    if total.shape[-1] > 1:
        of_queries, of_keys = _faded_products(torch.stack([query, key]), key, total)
        return (of_queries,) if rate is None else (of_queries, rate * of_keys)
    later = torch.ones(length, length, dtype=torch.bool, device=total.device).triu(1)
    decay = (total - total.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()  # G
    of_queries = (query @ keys) * decay
    return (of_queries,) if rate is None else (of_queries, rate * (key @ keys) * decay)


def _faded_products(reads: Tensor, key: Tensor, total: Tensor) -> Tensor:
    """Compute reads Kᵀ ∘ G of L tokens, a power of two: [..., L, dk] -> [..., L, L].

    γₜ / γᵢ is not the product of γₜ and 1 / γᵢ, which may be infinite. Between the halves of the tokens, it is the
    product of what fades after the first half and what fades before its end, of which none is larger than 1.
    """
    if key.shape[-2] == 1:
        return (reads * key).sum(-1, keepdim=True)
    reads, key, total = (part.unflatten(-2, (2, -1)) for part in (reads, key, total))  # [..., 2, L / 2, dk]
    first, second = _faded_products(reads, key, total).unbind(-3)
    end = total[..., 0, -1:, :]
    later = reads[..., 1, :, :] * (total[..., 1, :, :] - end).exp()
    earlier = key[..., 0, :, :] * (end - total[..., 0, :, :]).exp()
    between = later @ earlier.transpose(-1, -2)
    return torch.cat([torch.cat([first, torch.zeros_like(between)], -1), torch.cat([between, second], -1)], -2)


def _in_chunks(part: Tensor, chunk: int) -> Tensor:
    """[R, heads, L, ...] -> [R, heads, n, chunk, ...], 0 on what is added at the end."""
    widths = (0, 0) * (part.dim() - 3) + (0, -part.shape[2] % chunk)
    return pad(part, widths).unflatten(2, (-1, chunk))


def by_head(part: Tensor, groups: int, heads: int) -> Tensor:
    """[R, L, groups d] -> [R, heads, L, d]: as many neighbouring heads read each group."""
    of_groups = part.unflatten(-1, (groups, -1)).transpose(1, 2)
    return of_groups if groups == heads else of_groups.repeat_interleave(heads // groups, 1)


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def sigmoid(x: Tensor) -> Tensor:
    """σ(x). On a CPU, the bits of `torch.sigmoid` depend on where in a tensor a number is; those of tanh do not."""
    return (1 + torch.tanh(x / 2)) / 2


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), of which the same is true."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))
