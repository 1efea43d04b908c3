"""How the next token is chosen from its logits."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose the next token. The filters apply in the order top-k, top-p, min-p, on softmax(logits / T)."""

    temperature: float = 1.0  # 0 takes the likeliest token
    top_p: float = 1.0  # the fewest likeliest tokens whose probabilities reach this
    top_k: int = 0  # the k likeliest; 0 is all
    min_p: float = 0.0  # those at least this share as likely as the likeliest
    stop: tuple[str, ...] = ()  # texts that end the answer; they belong to it
    stop_token_ids: tuple[int, ...] = ()  # besides the model's end-of-sequence tokens
    max_tokens: int = 256

    def __post_init__(self) -> None:
        wrong = [
            f"{name} must be {rule}, not {getattr(self, name)!r}"
            for name, rule, right in (
                ("temperature", "0 or more", 0 <= self.temperature < float("inf")),
                ("top_p", "above 0 and at most 1", 0 < self.top_p <= 1),
                ("top_k", "0 or more", self.top_k >= 0),
                ("min_p", "from 0 to 1", 0 <= self.min_p <= 1),
                ("max_tokens", "1 or more", self.max_tokens >= 1),
            )
            if not right
        ]
        if wrong:
            raise ValueError("; ".join(wrong))


def choose(logits: Tensor, numbers: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Next tokens [n] and their log-probabilities [n], of logits [n, V] and uniform numbers [n].

    The log-probability is that at the sampling temperature over the whole vocabulary, before any filter (at
    temperature 0: at temperature 1). Each row's result depends on that row alone.
    """
    probabilities = (logits.float() / (sampling.temperature or 1.0)).softmax(-1)
    if sampling.temperature == 0:
        tokens = probabilities.argmax(-1, keepdim=True)
    else:
        weights = _filtered(probabilities, sampling)
        # The first token at which the cumulated weight passes the mark: never one of weight 0.
        cumulated = weights.cumsum(-1, dtype=torch.float32 if weights.device.type == "mps" else torch.float64)
        total = cumulated[:, -1:]
        # A number is below 1, but its product with the total may round up to it.
        mark = torch.minimum(numbers.to(total)[:, None] * total, total.nextafter(torch.zeros_like(total)))
        tokens = torch.searchsorted(cumulated, mark, right=True)
    return tokens.squeeze(1), probabilities.gather(-1, tokens).squeeze(1).log()


def _filtered(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    """Probabilities [n, V] with those of excluded tokens set to 0; the likeliest always stays."""
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
