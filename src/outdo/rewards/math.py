r"""The reward `math`: whether the answer is mathematically equal to the reference, by the optional package math-verify.

outdo finds the answer (`outdo.rewards.final_answer`, `outdo.rewards.expressions`) and compares plain numbers itself;
math-verify reads and compares everything else as LaTeX.

Parsing and comparing a model's answer may never end (`9^{9^{9}}`). math-verify limits the time by an alarm signal,
which does not interrupt arithmetic in C. Here that limit is off: `load_reward("math")` runs this function in a worker
process, which is killed at the deadline.
"""

import logging
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from outdo.rewards.exact import final_texts
from outdo.rewards.expressions import (
    LONGEST_EXPRESSION,
    as_latex,
    check_expression,
    expression_in,
    final_expression,
    has_words_between,
    in_words,
    phrase,
    squeezed,
)
from outdo.rewards.final_answer import after_cue, final_answer
from outdo.rewards.last_number import final_number, plain_number
from outdo.utils.errors import UserError

try:
    from math_verify import LatexExtractionConfig, parse, verify
except ModuleNotFoundError:
    raise UserError(['the reward "math" needs the package math-verify: pip install "outdo[math]"']) from None

for _module in ("parser", "grader"):  # these warn once that the limit is off, and log what they cannot parse
    logging.getLogger(f"math_verify.{_module}").setLevel(logging.CRITICAL)

_PERCENT = re.compile(r"(?:%|\bpercent\b|\bpct\b)\W*\Z", re.IGNORECASE)
_LATEX = [LatexExtractionConfig(boxed_match_priority=0)]


def math(completion: str, answer: Any, prefill: str = "") -> bool:
    r"""Return True if the final expression of the completion equals the reference: `\frac{1}{2}`, `0.5` and `1/2` do.

    `outdo.rewards.final_answer` finds both, so the reference may be a worked solution that ends in `#### answer`.
    Only the same text equals a reference that math-verify cannot read (`0.\overline{3}`), and one with words between
    its numbers (`18 to 20`).

    Raises:
        ValueError: the reference is empty or is not mathematics.
    """
    reference = _reference(check_expression(answer))
    completion = prefill + completion
    number = final_number(completion)
    if number is not None and reference.number is not None:
        return _equal_numbers(number, reference.number) or _equal_share(completion, number, reference)
    if reference.words in [in_words(text) for text in final_texts(completion)]:
        return True
    expression = final_expression(completion)
    if expression is None or len(expression) > LONGEST_EXPRESSION or has_words_between(expression):
        return False
    if squeezed(expression) == squeezed(reference.text):
        return True
    if reference.phrase is not None:
        return (phrase(expression) or expression.strip("() ").casefold()) == reference.phrase
    return verify(list(reference.parsed), _parse(expression), allow_set_relation_comp=True, timeout_seconds=None)


@dataclass(frozen=True, slots=True)
class _Reference:
    text: str
    number: Fraction | None
    phrase: str | None  # of a reference in words alone
    words: str | None  # of one in words and numbers
    parsed: tuple[Any, ...]


@lru_cache(maxsize=1024)
def _reference(expression: str) -> _Reference:
    """Return the parsed reference; the cache parses it once per group."""
    number, in_text, between = plain_number(expression), phrase(expression), has_words_between(expression)
    mixed = between or (number is None and expression_in(expression) is None)
    unread = between or in_text is not None or len(expression) > LONGEST_EXPRESSION
    parsed = () if unread else tuple(_parse(expression))
    return _Reference(expression, number, in_text, in_words(expression) if mixed else None, parsed)


def _equal_numbers(number: Fraction, reference: Fraction) -> bool:
    """Compare two numbers: exactly, or to six decimals where one is a decimal."""
    if number == reference:
        return True
    rounded = 1 not in (number.denominator, reference.denominator) and round(number, 6) == round(reference, 6)
    return rounded and (_is_decimal(number) or _is_decimal(reference))


def _equal_share(completion: str, number: Fraction, reference: _Reference) -> bool:
    """Return whether one of two numbers is the other one as a percentage: 50% and 0.5, but not 50% and 0.5%."""
    assert reference.number is not None
    match _is_percentage(completion), _PERCENT.search(reference.text) is not None:
        case True, False:
            return number / 100 == reference.number
        case False, True:
            return number == reference.number / 100
    return False


def _is_percentage(completion: str) -> bool:
    final = final_answer(completion)
    assert final is not None  # it holds a number
    return _PERCENT.search(final.text if final.stated else next(after_cue(final.text), final.text)) is not None


def _is_decimal(number: Fraction) -> bool:
    return 10**12 % number.denominator == 0


def _parse(expression: str) -> list[Any]:
    boxed = rf"\boxed{{{as_latex(expression)}}}"
    return parse(boxed, _LATEX, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
