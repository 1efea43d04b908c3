"""What a loss may see of the distribution that a token was drawn from, besides log πθ: sums over the vocabulary.

A `VocabularySum` is a function of the logits. `@requires(sums={"entropy": token_entropy})` asks for one by a name, and
`scores.sums["entropy"]` holds it, with its gradient. `old_sums` are those of π_old: `batch.old_sums["entropy"]`.

Logits have any precision; what is computed of them is float32, or float64 as they are. `temperature` broadcasts against
the token ids.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from outdo.types import Batch

Logits = Float[Tensor, "*N V"]
Temperature = Float[Tensor, "..."] | float
VocabularySum = Callable[..., Tensor]
"""Compute a number for each token from its logits and temperature: [N, V] and [N] -> [N].

`models.logprobs.chunked_scores` calls it with the logits of some tokens at a time.
"""


class SumWithData(ABC):
    """A sum over the vocabulary that reads more of each token than its logits."""

    @abstractmethod
    def data(self, batch: Batch, rows: Int[Tensor, "N"], columns: Int[Tensor, "N"]) -> tuple[Tensor, ...]:
        """Return what the sum reads of the tokens at `rows` and `columns`: [N, ...] each."""

    @abstractmethod
    def __call__(self, logits: Tensor, temperature: Tensor, *data: Tensor) -> Float[Tensor, "N"]:
        """Compute a number for each token from its logits [N, V], temperature [N] and `data`."""


def token_logprobs(logits: Logits, token_ids: Int[Tensor, "*N"], temperature: Temperature = 1.0) -> Float[Tensor, "*N"]:
    """Compute log softmax(logits / temperature) at chosen tokens.

    `logits[i]` must already be those that predict `token_ids[i]`. A token whose logit is +inf has NaN.

    The token is left out of the sum over the vocabulary, -log p_t = log(1 + Σ_{v≠t} exp(z_v - z_t)): where p_t is near
    1, z_t - log Σ_v exp(z_v) is a difference of nearly equal numbers (arXiv 2610.31642). In float32 that difference is
    off by 7 % at 1 - p_t = 6e-6 and 0 from 8e-7 on, and so is the gradient 1 - p_t.
    """
    z, at = scaled(logits, temperature), token_ids[..., None]
    chosen = z.gather(-1, at).squeeze(-1)
    others = z.scatter(-1, at, torch.finfo(z.dtype).min).logsumexp(-1)
    return log_probability(chosen, chosen - others)


def token_entropy(logits: Logits, temperature: Temperature = 1.0) -> Float[Tensor, "*N"]:
    """Compute H = -Σ_v p_v log p_v of softmax(logits / temperature), in nats."""
    logprobs = scaled(logits, temperature).log_softmax(-1)
    likeliest = logprobs.argmax(-1)
    logprobs = logprobs.scatter(-1, likeliest[..., None], token_logprobs(logits, likeliest, temperature)[..., None])
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(-1)


def detached_entropy(logits: Logits, temperature: Temperature = 1.0) -> Float[Tensor, "*N"]:
    """Compute `token_entropy` without a gradient, for a metric."""
    return token_entropy(logits.detach(), temperature)


def token_collision(logits: Logits, temperature: Temperature = 1.0) -> Float[Tensor, "*N"]:
    """Compute Σ_v p_v² of softmax(logits / temperature), how often two draws are equal."""
    return scaled(logits, temperature).softmax(-1).square().sum(-1)


def scaled(logits: Logits, temperature: Temperature) -> Logits:
    """Return logits / temperature."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits / (temperature[..., None] if isinstance(temperature, Tensor) else temperature)


def log_probability(logit: Float[Tensor, "*N"], odds: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Return log p = -log(1 + exp(-odds)) of tokens from their log-odds; NaN where the logit is +inf, as the sum is."""
    return logsigmoid(odds).masked_fill(logit == torch.inf, torch.nan)
