"""The lower bound of the time of a case: its operations and bytes, from lengths and weights, at the machine's speed."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.suite.cases import Case

FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Sizes of a model."""

    matrices: int  # weights of all linear layers without the output embedding
    head: int  # of the output embedding
    all: int
    layers: int
    attention: int  # heads x their width


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The number of multiplications and additions, and the bytes that must be read."""

    sampling: int
    training: int
    sampling_bytes: int

    def sampling_seconds(self, speed: Mapping[str, float]) -> float:
        """Compute the time for sampling: arithmetic, or reading all weights for each token, whichever takes longer."""
        return max(self.sampling / speed["multiply"], self.sampling_bytes / speed["copy"])

    def seconds(self, speed: Mapping[str, float]) -> float:
        """Compute the time for the whole step."""
        return self.sampling_seconds(speed) + self.training / speed["multiply"]


def roofline(case: Case, weights: Weights) -> Roofline:
    """Count the least operations of a case: each prompt is computed once for its group, and nothing is padded.

    A product with n weights takes 2n operations per token, and its backward pass twice as many. The last token of an
    answer is never read, and logits are needed for sampled tokens only. Attention multiplies a query by each earlier
    key, and the weight by that key's value: 4 x its width for each pair of tokens that attend, in each layer.
    """
    prompt, answers = case.prompt_tokens, case.answers
    read = prompt + sum(length - 1 for length in answers)
    pairs = prompt * (prompt + 1) // 2
    pairs += sum((length - 1) * prompt + length * (length - 1) // 2 for length in answers)
    products = 2 * weights.matrices * read + 2 * weights.head * sum(answers)
    forward = case.prompts * (products + 4 * weights.layers * weights.attention * pairs)
    return Roofline(
        sampling=forward, training=3 * forward, sampling_bytes=FLOAT * weights.all * max(answers, default=0)
    )
