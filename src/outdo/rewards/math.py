"""The reward `math`: is the answer mathematically equal to the reference? By math-verify, an optional package.

Parsing and comparing what a model wrote can take for ever (`9^{9^{9}}`). math-verify's own limit is an alarm signal,
which arithmetic in C does not hear; here it is off, and the worker in which `load("math")` runs this function stops it.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from outdo.rewards.exact import MARK, reference_text
from outdo.utils.errors import UserError

try:
    from math_verify import parse, verify
except ModuleNotFoundError:
    raise UserError(['the reward "math" needs the package math-verify: pip install "outdo[math]"']) from None

for _module in ("parser", "grader"):  # they warn once that the limit is off, and log what they cannot parse
    logging.getLogger(f"math_verify.{_module}").setLevel(logging.CRITICAL)

_LATEX = re.compile(r"[\\^]|^[(\[]")
"""A command, a power, a tuple or an interval: math-verify reads these between dollars or in a box only."""


def math(completion: str, answer: Any) -> bool:
    r"""True if the completion's final expression equals the reference: `\frac{1}{2}`, `0.5` and `1/2` are one.

    What stands after the last `####`, or else what math-verify finds last, preferring `\boxed{...}`, is the final
    expression. The reference may be a worked solution that ends in `#### answer`.

    Raises:
        ValueError: the reference is empty or is no mathematics.
    """
    return verify(
        list(_reference(reference_text(answer))), _parsed(completion.rpartition(MARK)[2]), timeout_seconds=None
    )


@lru_cache(maxsize=1024)
def _reference(text: str) -> tuple[Any, ...]:
    """The reference, parsed once for its whole group."""
    delimited = "$" in text or r"\boxed" in text
    parsed = _parsed(f"${text}$" if _LATEX.search(text) and not delimited else text)
    if not parsed:
        raise ValueError(f"the reference answer is not mathematics: {text[:80]!r}")
    return tuple(parsed)


def _parsed(text: str) -> list[Any]:
    return parse(text, parsing_timeout=None)  # type: ignore[arg-type]
