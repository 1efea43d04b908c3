"""The reward of `fifty_tokens.toml`: 1 for an answer of 50 tokens, less for every token more or fewer."""

from collections.abc import Sequence

WANTED, TOLERANCE = 50, 5


def score(completion: str, completion_ids: Sequence[int]) -> float:
    """Return 1 - distance / 50, at least 0. The end-of-sequence token counts."""
    return max(0.0, 1.0 - abs(len(completion_ids) - WANTED) / WANTED)


def within_five(completion: str, completion_ids: Sequence[int]) -> bool:
    """Return whether an answer is right."""
    return abs(len(completion_ids) - WANTED) <= TOLERANCE
