"""What a case must cost: its multiplications and bytes, counted from lengths and weights, over the machine's speed."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.suite.cases import Case

FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Of a model."""

    matrices: int  # weights of the linear maps every token passes, the output embedding left out
    head: int  # of the output embedding
    all: int
    layers: int
    attention: int  # heads x their width


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Multiplications and additions, each counted, and bytes that have to be read."""

    sampling: int
    training: int
    sampling_bytes: int

    def sampling_seconds(self, speed: Mapping[str, float]) -> float:
        """At this speed: the arithmetic, or the reading of all weights at each token if that takes longer."""
        return max(self.sampling / speed["multiply"], self.sampling_bytes / speed["copy"])

    def seconds(self, speed: Mapping[str, float]) -> float:
        """Of the whole step."""
        return self.sampling_seconds(speed) + self.training / speed["multiply"]


def floor(case: Case, weights: Weights) -> Floor:
    """What no implementation can do without, if a prompt is computed once for its group and nothing is padded.

    A product with n weights is 2n operations a token, and its backward pass twice as many. The last token of an answer
    is never read, and logits are needed for sampled tokens only. Attention multiplies a query by each key before it,
    and its weight by that one's value: 4 x its width for every pair of tokens that see each other, in each layer.
    """
    prompt, answers = case.prompt_tokens, case.answers
    read = prompt + sum(length - 1 for length in answers)
    pairs = prompt * (prompt + 1) // 2
    pairs += sum((length - 1) * prompt + length * (length - 1) // 2 for length in answers)
    products = 2 * weights.matrices * read + 2 * weights.head * sum(answers)
    forward = case.prompts * (products + 4 * weights.layers * weights.attention * pairs)
    return Floor(sampling=forward, training=3 * forward, sampling_bytes=FLOAT * weights.all * max(answers, default=0))
