r"""The rewards of the recipes in this folder, as the published runs compute them."""

import re
from difflib import SequenceMatcher

NUMBER_AFTER_MARK = re.compile(r"#### (-?[0-9.,]+)")
REVERSED = re.compile(r"<reversed_text>(.*?)</reversed_text>", re.DOTALL)


def after_mark(completion: str, answer: str) -> float:
    """Return 1 if the last number after `####` is that of the reference: the strict reward of verl for GSM8K."""
    found, expected = (NUMBER_AFTER_MARK.findall(text) for text in (completion, answer))
    return float(bool(found) and found[-1].replace(",", "") == expected[-1].replace(",", ""))


def boxed(completion: str, answer: str) -> float:
    r"""Return 1 if the answer has a `\boxed{...}` and equals the reference; without a box it earns nothing."""
    from outdo.rewards.math import math  # needs math-verify, which the other recipes do without

    return float(r"\boxed{" in completion and math(completion, answer))


def reversed_text(completion: str, prompt: str) -> float:
    """Return how much of the reversed question is in the tag, from 0 to 1: the reward of prime-rl's `reverse-text`."""
    found = REVERSED.search(completion)
    return SequenceMatcher(None, found[1].strip() if found else "", prompt[::-1]).ratio()
