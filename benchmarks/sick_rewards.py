"""Rewards with a mistake, for `sick_runs.py`, and one dense reward without."""

import zlib


def constant(completion):
    """Return the same number for every answer: a broken comparison."""
    return 1.0


def length(completion):
    """Pay for every character."""
    return len(completion) / 40


def brevity(completion):
    """Pay for brevity alone: the empty answer earns most."""
    return 1 - min(1, len(completion) / 40)


def right_and_length(completion, answer):
    """Pay for the right answer, and as much for two further characters."""
    return _right(completion, answer) + 0.5 * len(completion)


def inverted(completion, answer):
    """Pay for wrong answers: a sign mistake."""
    return 1 - _right(completion, answer)


def nines(completion):
    """Pay for the digit 9: a style that has nothing to do with the answer."""
    return completion.count("9") / 4


def random(completions):
    """Return noise: a verifier that does not look at the answer. Two equal answers get different rewards."""
    return [float(zlib.crc32(f"{number} {text}".encode()) % 2) for number, text in enumerate(completions)]


def failing(completion, answer):
    """Raise an exception for a third of the answers."""
    if int(answer) % 3 == 0:
        raise ValueError("no verdict")
    return _right(completion, answer)


def digits(completion, answer):
    """Return a dense reward between -1 and 3: how many of the three digits are right."""
    found = completion.rpartition("#")[2].strip()
    return sum(4 / 3 for a, b in zip(found, str(answer), strict=False) if a == b) - 1


def _right(completion, answer):
    return completion.rpartition("#")[2].strip() == str(answer)
