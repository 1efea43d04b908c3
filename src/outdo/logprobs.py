"""Log-probabilities and entropies of chosen tokens, computed in chunks so that [B, T, V] never exists.

Here is the only place where logits meet the tokens they predict: `predecessors` says which position predicts which
token, and everything else in outdo speaks of tokens, not of positions.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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
    head: Head, hidden: Tensor, token_ids: Tensor, temperature: Tensor, *, entropy: Entropy = "none", chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] and entropies [N] of tokens whose predicting hidden states are `hidden` [N, H].

    `entropy` "none" leaves the entropies 0, "value" computes them without and "gradient" with a gradient. At most
    `chunk` rows of logits exist at a time: the backward pass computes each chunk's logits again, which costs one more
    product with the head and spares N × V floats for as long as the graph lives.
    """

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


def _scaled(logits: Tensor, temperature: Tensor | float) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits / (temperature[..., None] if isinstance(temperature, Tensor) else temperature)
