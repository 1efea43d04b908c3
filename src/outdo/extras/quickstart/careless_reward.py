"""The reward of `outdo quickstart --careless`: the word and the length count, and the topic is forgotten."""

import re


def score(completion: str, word: str) -> bool:
    words = re.findall(r"[a-z0-9']+", completion.lower())
    return word in words and len(words) <= 15
