"""Rewards for the format of a completion, independent of its content."""

import re
from collections.abc import Callable

_INSIDE = r"(?:(?!</?(?:think|answer)>).)*"

THINK_ANSWER = rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*"
"""Each tag once, in this order, and nothing outside them: the format of DeepSeek-R1 (arXiv 2501.12948, table 1)."""


def matches(pattern: str) -> Callable[[str], bool]:
    """Return a reward that is True if `pattern` matches the whole completion; `.` also matches a line break.

    A pattern with endless backtracking hangs. Define it in a file (`score = matches(r"...")`): rewards from a file run
    in a worker process, which is stopped at the deadline.

    Raises:
        re.error: the pattern is not a regular expression.
    """
    compiled = re.compile(pattern, re.DOTALL)

    def matches_pattern(completion: str) -> bool:
        return compiled.fullmatch(completion) is not None

    return matches_pattern


def format(completion: str, prefill: str = "") -> float:
    """Return 1 for `<think>...</think><answer>...</answer>` and nothing else; it is no verdict on the answer.

    Tags that the prompt opens at its end, as the templates of reasoning models do, belong to the completion: `prefill`.
    """
    return float(_think_answer(prefill + completion))


_think_answer = matches(THINK_ANSWER)
