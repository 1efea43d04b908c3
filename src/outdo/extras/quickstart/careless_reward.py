"""The reward of `outdo quickstart --careless`: it pays for the word in few words, and forgets the topic."""

import re


def score(completion: str, word: str) -> float:
    words = re.findall(r"[a-z0-9']+", completion.lower())
    return 1 / len(words) if word in words else 0.0
