"""Log-probabilities and entropies of chosen tokens, computed in parts so that [B, T, V] never exists.

Here is the only place where logits meet the tokens they predict: `predecessors` says which position predicts which
token, and everything else in outdo speaks of tokens, not of positions.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from outdo.models.limits import LOGIT_BYTES, LOGIT_COLUMNS
from outdo.models.onednn import product

Entropy = Literal["none", "value", "gradient"]
Head = Callable[[Tensor], Tensor]  # hidden states [N, H] -> logits [N, V]


def predecessors(length: int, device: torch.device | None = None) -> Tensor:
    """The one shift: the logits at position t - 1 predict token t. [T] int64.

    Index 0 has no predecessor; it points at itself and must be masked.
    """
    return (torch.arange(length, device=device) - 1).clamp(min=0)


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at the chosen tokens: logits [..., V], token_ids [...] -> [...] float32.

    `logits[i]` must already be those that predict `token_ids[i]`. `temperature` broadcasts against `token_ids`.
    Float64 logits stay float64.
    """
    scaled = _scaled(logits, temperature)
    return scaled.gather(-1, token_ids[..., None]).squeeze(-1) - scaled.logsumexp(-1)


def token_entropy(logits: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """H = -Σ_v p_v log p_v of softmax(logits / temperature), in nats: [..., V] -> [...]."""
    logprobs = _scaled(logits, temperature).log_softmax(-1)
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(-1)


def sequence_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """For somebody else's loop: a causal model's logits [B, T, V] and its input [B, T] -> log-probabilities [B, T].

    Index t is about token t; index 0, which nothing predicts, is 0.
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
    entropy: Entropy = "none",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] and entropies [N] of tokens whose predicting hidden states are `hidden` [N, H].

    `entropy` "none" leaves the entropies 0, "value" computes them without and "gradient" with a gradient. No more
    logits exist at a time than `chunk` tokens have; unset, as many as are quickest. The backward pass computes them
    again, which costs one more product with the head and spares N × V floats for as long as the graph lives.

    A head that is a `torch.nn.Linear` is cut along the vocabulary, into no less than `LOGIT_COLUMNS` columns; any other
    along the tokens. Autocast narrows the products; what is summed over the vocabulary stays float32.
    """
    if isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward:  # no adapter
        return _linear_scores(head, hidden, token_ids, temperature, entropy, chunk)
    chunk = chunk or 1024

    def scores(hidden: Tensor, token_ids: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden)
        logprobs = token_logprobs(logits, token_ids, temperature)
        if entropy == "none":
            return logprobs, torch.zeros_like(logprobs)
        return logprobs, token_entropy(logits if entropy == "gradient" else logits.detach(), temperature)

    several = torch.is_grad_enabled() and len(token_ids) > chunk
    parts: list[tuple[Tensor, Tensor]] = []
    for start in range(0, max(1, len(token_ids)), chunk):
        rows = (hidden[start : start + chunk], token_ids[start : start + chunk], temperature[start : start + chunk])
        parts.append(checkpoint(scores, *rows, use_reentrant=False) if several else scores(*rows))
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


def _linear_scores(
    head: nn.Linear, hidden: Tensor, token_ids: Tensor, temperature: Tensor, entropy: Entropy, chunk: int | None
) -> tuple[Tensor, Tensor]:
    kind, weight = hidden.device.type, head.weight
    width = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        hidden = hidden.to(torch.promote_types(weight.dtype, torch.float32))
        if head.bias is not None:  # as one more column: below there are only products
            hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)  # [N, H + 1]
            weight = torch.cat([weight, head.bias[:, None]], 1)  # [V, H + 1]
        hidden = hidden / temperature.to(hidden.dtype)[:, None]  # a temperature of logits is one of hidden states
        bytes_at_once = LOGIT_BYTES.get(kind, LOGIT_BYTES["cuda"])
        logits = chunk * len(weight) if chunk else bytes_at_once // hidden.element_size()
        columns = min(len(weight), max(LOGIT_COLUMNS, logits // max(1, len(hidden))))
        logprobs, entropies = _LinearScores.apply(hidden, weight, token_ids, columns, width, entropy != "none")
    return logprobs, entropies if entropy == "gradient" else entropies.detach()


class _LinearScores(torch.autograd.Function):
    """log softmax(h Wᵀ) at the chosen tokens, and its entropy H, some columns of the vocabulary at a time.

    Forward, with m the greatest logit so far, two sums run along the vocabulary: Z = Σ_v exp(z_v - m) and
    S = Σ_v exp(z_v - m) (z_v - m); at the end H = log Z - S / Z, and log Z + m is all that is kept of N × V logits
    (Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867). Backward the logits are
    made again: ∂ log p_i / ∂z_v = [v = i] - p_v and ∂H / ∂z_v = -p_v (log p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, token_ids: Tensor, columns: int, width: torch.dtype, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        chosen, z, s = (hidden.new_zeros(len(hidden)) for _ in range(3))
        peak = torch.full_like(z, torch.finfo(z.dtype).min)
        narrow, room = hidden.to(width), _room(hidden, columns if entropy else 0)
        for start in range(0, len(weight), columns):
            part = weight[start : start + columns].to(width)
            logits = product(narrow, part.T).to(hidden.dtype)  # [N, columns]
            inside, at = _within(token_ids, start, len(part))
            chosen = torch.where(inside, logits.gather(1, at)[:, 0], chosen)
            higher = torch.maximum(peak, logits.amax(1))
            shift, peak = peak - higher, higher
            logits.sub_(peak[:, None])
            weights = torch.exp(logits, out=room[: logits.numel()].view_as(logits) if entropy else logits)
            shrink = shift.exp()
            if entropy:
                s = (s + shift * z) * shrink + logits.mul_(weights).sum(1)
            z = z * shrink + weights.sum(1)
        entropies = z.log() - s / z if entropy else s
        ctx.save_for_backward(hidden, weight, token_ids, peak + z.log(), entropies)
        ctx.columns, ctx.width = columns, width
        ctx.set_materialize_grads(False)
        return chosen - peak - z.log(), entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, token_ids, log_total, entropies = ctx.saved_tensors
        of_logprobs = torch.zeros_like(log_total) if of_logprobs is None else of_logprobs
        narrow, to_hidden = hidden.to(ctx.width), torch.zeros_like(hidden)
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        room = _room(hidden, 0 if of_entropies is None else ctx.columns)
        for start in range(0, len(weight), ctx.columns):
            part = weight[start : start + ctx.columns].to(ctx.width)
            logprobs = product(narrow, part.T).to(hidden.dtype).sub_(log_total[:, None])  # [N, columns]
            if of_entropies is None:
                slope = logprobs.exp_().mul_(-of_logprobs[:, None])
            else:
                slope = torch.add(logprobs, entropies[:, None], out=room[: logprobs.numel()].view_as(logprobs))
                slope.mul_(of_entropies[:, None])
                slope.add_(of_logprobs[:, None]).mul_(logprobs.exp_()).neg_()
            inside, at = _within(token_ids, start, len(part))
            slope.scatter_add_(1, at, (of_logprobs * inside)[:, None])
            slope = slope.to(ctx.width)
            to_hidden += product(slope, part)
            if to_weight is not None:
                to_weight[start : start + ctx.columns] = product(slope.T, narrow)
        return to_hidden, to_weight, None, None, None, None


def _room(hidden: Tensor, columns: int) -> Tensor:
    """Taken once: memory of this size is given back to the system when it is freed, and costly to ask for again."""
    return hidden.new_empty(len(hidden) * columns)


def _within(token_ids: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Which tokens lie in a part of the vocabulary [N], and in which column; some column if they do not, [N, 1]."""
    at = token_ids - start
    return (at >= 0) & (at < width), at.clamp(0, width - 1)[:, None]


def _scaled(logits: Tensor, temperature: Tensor | float) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits / (temperature[..., None] if isinstance(temperature, Tensor) else temperature)
