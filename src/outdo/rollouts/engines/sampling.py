"""Sample the next token from its logits: temperature, top-k, top-p and min-p."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled, and when an answer ends.

    The filters apply in the order top-k, top-p, min-p, on softmax(logits / T).
    """

    temperature: float = 1.0  # 0: the likeliest token
    top_p: float = 1.0  # keep the fewest likeliest tokens whose probabilities sum to this
    top_k: int = 0  # keep the k likeliest tokens; 0: all
    min_p: float = 0.0  # keep tokens with at least this fraction of the probability of the likeliest
    stop: tuple[str, ...] = ()  # texts that end the answer; the answer includes them
    stop_token_ids: tuple[int, ...] = ()  # in addition to the model's end-of-sequence tokens
    max_tokens: int = 256

    def __post_init__(self) -> None:
        mistakes = [
            f"{name} must be {rule}, not {getattr(self, name)!r}"
            for name, rule, satisfied in (
                ("temperature", "0 or more", 0 <= self.temperature < float("inf")),
                ("top_p", "above 0 and at most 1", 0 < self.top_p <= 1),
                ("top_k", "0 or more", self.top_k >= 0),
                ("min_p", "from 0 to 1", 0 <= self.min_p <= 1),
                ("max_tokens", "1 or more", self.max_tokens >= 1),
            )
            if not satisfied
        ]
        if mistakes:
            raise ValueError("; ".join(mistakes))


def sample_tokens(logits: Tensor, numbers: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the next tokens [n] and their log-probabilities [n], from logits [n, V] and uniform numbers [n].

    Log-probabilities are at the sampling temperature over the whole vocabulary, before any filter (at temperature 0: at
    temperature 1). The result of a row depends only on that row.
    """
    probabilities = (logits.float() / (sampling.temperature or 1.0)).softmax(-1)
    if sampling.temperature == 0:
        tokens = probabilities.argmax(-1, keepdim=True)
    else:
        weights = apply_filters(probabilities, sampling)
        # The first token whose cumulative weight exceeds the threshold: never a token of weight 0.
        cumulative = weights.cumsum(-1, dtype=torch.float32 if weights.device.type == "mps" else torch.float64)
        total = cumulative[:, -1:]
        # A number is below 1, but its product with the total may round up to the total.
        threshold = torch.minimum(numbers.to(total)[:, None] * total, total.nextafter(torch.zeros_like(total)))
        tokens = torch.searchsorted(cumulative, threshold, right=True)
    return tokens.squeeze(1), probabilities.gather(-1, tokens).squeeze(1).log()


def apply_filters(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the probabilities [n, V] with those of excluded tokens set to 0; the likeliest token is never excluded."""
    if sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        return probabilities
    ranked, order = probabilities.sort(stable=True, dim=-1, descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        kept = ranked * keep
        keep &= kept.cumsum(-1) - kept < sampling.top_p * kept.sum(-1, keepdim=True)
    keep &= ranked >= sampling.min_p * ranked[:, :1]
    keep[:, 0] = True
    return probabilities * torch.zeros_like(keep).scatter(-1, order, keep)
