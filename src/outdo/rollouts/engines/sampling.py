"""The sampling parameters that every engine gets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled, and when an answer ends.

    The filters apply in the order top-k, top-p, min-p, on softmax(logits / T).
    """

    temperature: float = 1.0  # 0: the likeliest token
    top_p: float = 1.0  # keep the fewest likeliest tokens whose probabilities sum to at least this
    top_k: int = 0  # keep the k likeliest tokens; 0: all
    min_p: float = 0.0  # keep tokens with at least this fraction of the probability of the likeliest
    stop: tuple[str, ...] = ()  # texts that end the answer; the answer includes them
    stop_token_ids: tuple[int, ...] = ()  # in addition to the model's end-of-sequence tokens
    max_tokens: int = 256
    routes: bool = False  # return which experts of a mixture model computed each token: see `Completion.routes`

    def __post_init__(self) -> None:
        mistakes = [
            f"{name} must be {rule}, not {value!r}"
            for name, value, rule, satisfied in (
                ("temperature", self.temperature, "0 or more", 0 <= self.temperature < float("inf")),
                ("top_p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1),
                ("top_k", self.top_k, "0 or more", self.top_k >= 0),
                ("min_p", self.min_p, "from 0 to 1", 0 <= self.min_p <= 1),
                ("max_tokens", self.max_tokens, "1 or more", self.max_tokens >= 1),
            )
            if not satisfied
        ]
        if mistakes:
            raise ValueError("; ".join(mistakes))
