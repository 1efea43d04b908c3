"""The reward of `reversed_words.toml`: how much of the reversed text an answer has."""

from difflib import SequenceMatcher


def score(completion: str, answer: str) -> float:
    """Return twice the number of matching letters, divided by the letters of both texts; 1 if they are equal."""
    return SequenceMatcher(None, completion.strip(), answer, autojunk=False).ratio()


def is_equal(completion: str, answer: str) -> bool:
    """Return whether an answer is right."""
    return completion.strip() == answer
