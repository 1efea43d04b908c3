"""The reward `math`: whether the answer is mathematically equal to the reference, by the optional package math-verify.

Parsing and comparing a model's answer may never end (`9^{9^{9}}`). math-verify limits the time by an alarm signal,
which does not interrupt arithmetic in C. Here that limit is off: `load_reward("math")` runs this function in a worker
process, which is killed at the deadline.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from outdo.rewards.exact import ANSWER_MARKER, reference_text
from outdo.utils.errors import UserError

try:
    from math_verify import parse, verify
except ModuleNotFoundError:
    raise UserError(['the reward "math" needs the package math-verify: pip install "outdo[math]"']) from None

for _module in ("parser", "grader"):  # these warn once that the limit is off, and log what they cannot parse
    logging.getLogger(f"math_verify.{_module}").setLevel(logging.CRITICAL)

_LATEX = re.compile(r"[\\^]|^[(\[]")
"""A command, a power, a tuple or an interval: math-verify reads these only between dollar signs or in a box."""


def math(completion: str, answer: Any) -> bool:
    r"""Return True if the completion's final expression equals the reference: `\frac{1}{2}`, `0.5` and `1/2` are equal.

    The final expression is the text after the last `####`; without one, the last expression that math-verify finds,
    `\boxed{...}` first. The reference may be a worked solution that ends in `#### answer`.

    Raises:
        ValueError: the reference is empty or is not mathematics.
    """
    return verify(
        list(_reference(reference_text(answer))), _parse(completion.rpartition(ANSWER_MARKER)[2]), timeout_seconds=None
    )


@lru_cache(maxsize=1024)
def _reference(text: str) -> tuple[Any, ...]:
    """Return the parsed reference; the cache parses it once per group."""
    delimited = "$" in text or r"\boxed" in text
    parsed = _parse(f"${text}$" if _LATEX.search(text) and not delimited else text)
    if not parsed:
        raise ValueError(f"the reference answer is not mathematics: {text[:80]!r}")
    return tuple(parsed)


def _parse(text: str) -> list[Any]:
    return parse(text, parsing_timeout=None)  # type: ignore[arg-type]
