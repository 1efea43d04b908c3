"""Rewards for the shape of a completion, whatever it says."""

import re
from collections.abc import Callable

_INSIDE = r"(?:(?!</?(?:think|answer)>).)*"

THINK_ANSWER = rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*"
"""Each tag once and in this order, and nothing outside: the format of DeepSeek-R1 (arXiv 2501.12948, table 1)."""


def matches(pattern: str) -> Callable[[str], bool]:
    """A reward that is True where `pattern` matches the whole completion; `.` matches a line break too.

    A pattern that backtracks without end hangs: in a file (`score = matches(r"...")`) it runs in a worker, which is
    stopped.

    Raises:
        re.error: the pattern is not a regular expression.
    """
    compiled = re.compile(pattern, re.DOTALL)

    def matches_pattern(completion: str) -> bool:
        return compiled.fullmatch(completion) is not None

    return matches_pattern


def format(completion: str) -> bool:
    """True for `<think>...</think><answer>...</answer>` and nothing else."""
    return _think_answer(completion)


_think_answer = matches(THINK_ANSWER)
