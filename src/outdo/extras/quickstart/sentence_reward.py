"""The reward of `outdo quickstart`: the share of four constraints on a sentence that hold. It may be changed."""

import re


def score(completion: str, topic: str, word: str) -> float:
    words = re.findall(r"[a-z0-9'-]+", completion.lower())
    constraints = [
        re.fullmatch(r"[^.!?\n]+[.!?]", completion.strip()) is not None,  # one sentence
        6 <= len(words) <= 12,
        words.count(word) == 1,
        topic in words or f"{topic}s" in words,
    ]
    return sum(constraints) / len(constraints)
