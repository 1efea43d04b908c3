r"""The reward `math`: whether the answer is mathematically equal to the reference, by the optional package math-verify.

outdo finds the answer (`outdo.rewards.final_answer`, `outdo.rewards.expressions`) and compares plain numbers itself;
math-verify reads and compares everything else as LaTeX.

Parsing and comparing a model's answer may never end (`9^{9^{9}}`). math-verify limits the time by an alarm signal,
which does not interrupt arithmetic in C. Here that limit is off: `load_reward("math")` runs this function in a worker
process, which is killed at the deadline.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from outdo.rewards.approximations import beside_decimal
from outdo.rewards.expressions import (
    LONGEST_EXPRESSION,
    as_latex,
    expression_in,
    final_expression,
    reference_expression,
    squeezed,
)
from outdo.rewards.final_answer import after_cue, final_answer, final_sentence, reference_text
from outdo.rewards.last_number import final_numbers, plain_number
from outdo.rewards.notation import without_latex
from outdo.rewards.numerals import numeral_in
from outdo.rewards.ordered import Listed, equal_in_order, has_its_order, listed
from outdo.rewards.phrases import equals_text, has_words_between, in_words, phrase, text_reference
from outdo.rewards.relations import bounded
from outdo.rewards.sets import EMPTY, REALS, one_set
from outdo.rewards.units import Unit, all_differ, unit_at_end, units_of
from outdo.utils.errors import UserError

try:
    from math_verify import LatexExtractionConfig, parse, verify
except ModuleNotFoundError:
    raise UserError(['the reward "math" needs the package math-verify: pip install "outdo[math]"']) from None

for _module in ("parser", "grader"):  # these warn once that the limit is off, and log what they cannot parse
    logging.getLogger(f"math_verify.{_module}").setLevel(logging.CRITICAL)

_PERCENT = re.compile(r"(?:%|\bpercent\b|\bpct\b)\W*\Z", re.IGNORECASE)
_COEFFICIENT = re.compile(r"[-+]?[\d.,/ ]*\d\s*[a-zA-Z]{1,3}")  # math-verify takes 2c for 2
_MODULUS = re.compile(r"\bmod(?:ulo)?\s*(\d+)", re.IGNORECASE)
_LATEX = [LatexExtractionConfig(boxed_match_priority=0)]


def math(completion: str, answer: Any, prefill: str = "") -> bool:
    r"""Return True if the final expression of the completion equals the reference: `\frac{1}{2}`, `0.5` and `1/2` do.

    `outdo.rewards.final_answer` finds both, so the reference may be a worked solution that ends in `#### answer`. Only
    the same text equals a reference that is text, such as a date (`outdo.rewards.phrases`), and one that math-verify
    cannot read (`0.\overline{3}`).

    Raises:
        ValueError: the reference is empty or is not mathematics.
    """
    reference, final = _reference(reference_text(answer)), _final(prefill + completion)
    verdicts = (rule(final, reference) for rule in _RULES)
    return next((verdict for verdict in verdicts if verdict is not None), False)


@dataclass(frozen=True, slots=True)
class _Reference:
    text: str
    number: Fraction | None
    phrase: str | None  # of a reference in words alone
    written: str | None  # of one that only the same text equals
    numeral: tuple[str, int] | None
    units: list[Unit]
    modulus: str | None
    as_set: str | None
    listed: Listed | None


@dataclass(frozen=True, slots=True)
class _Final:
    completion: str
    sentence: str
    numbers: list[Fraction]
    expression: str  # empty if there is none, or one that is too long
    units: list[Unit]  # of the expression


@lru_cache(maxsize=1024)
def _reference(text: str) -> _Reference:
    """Return what a reference is; the cache reads it once per group."""
    expression = reference_expression(text)
    number, numeral, written = plain_number(expression), numeral_in(text), text_reference(text)
    if bounded(text) == "" or (number is None and expression_in(text) is None):
        written = in_words(text)
    return _Reference(
        text=expression,
        number=number,
        phrase=phrase(expression),
        written=None if numeral else written,
        numeral=numeral,
        units=_units_at_end(text) if number is None else units_of(text, number),
        modulus=_modulus(text),
        as_set=one_set(expression),
        listed=listed(expression),
    )


def _final(completion: str) -> _Final:
    sentence = final_sentence(completion)
    expression = final_expression(completion) or ""
    if beside := beside_decimal(sentence):
        exact = expression_in(beside.exact) or ""
        value = _value(exact)
        if value is not None:
            expression = exact if beside.agrees(value) else ""
    expression = expression if len(expression) <= LONGEST_EXPRESSION else ""
    return _Final(completion, sentence, final_numbers(completion), expression, _units_at_end(sentence))


def _by_text(final: _Final, reference: _Reference) -> bool | None:
    if reference.written is None:
        return None
    return any(equals_text(text, reference.written) for text in (final.sentence, final.expression))


def _by_numeral(final: _Final, reference: _Reference) -> bool | None:
    """Compare numerals that name their base; base ten is no other base."""
    numeral = numeral_in(final.sentence) or numeral_in(final.expression)
    if numeral == reference.numeral:
        return None if numeral is None else True
    return numeral is not None and numeral[1] == 10 and reference.number == int(numeral[0])


def _by_number(final: _Final, reference: _Reference) -> bool | None:
    if reference.number is None or not final.numbers:
        return None
    modulus = _modulus(final.sentence)
    if modulus and reference.modulus and modulus != reference.modulus:
        return False
    if all_differ(units_of(final.sentence, reference.number), reference.units):
        return False
    is_equal = any(_equal_numbers(number, reference.number) for number in final.numbers)
    return is_equal or _equal_share(final.completion, final.numbers[0], reference)


def _by_angle(final: _Final, reference: _Reference) -> bool | None:
    """Compare degrees with radians that have a π in them."""
    if reference.number is None and _has_pi(reference.text) and final.numbers:
        is_angle = _is_angle(units_of(final.sentence, final.numbers[0]))
        return _same(rf"{final.numbers[0]}\pi/180", reference.text) if is_angle else None
    if not _has_pi(final.expression):
        return None
    if _is_angle(final.units):
        return False
    is_angle = reference.number is not None and _is_angle(reference.units)
    return _same(final.expression, rf"{reference.number}\pi/180") if is_angle else None


def _by_words(final: _Final, reference: _Reference) -> bool | None:
    if reference.phrase is None:
        return None
    if phrase(final.sentence) == reference.phrase or squeezed(final.expression) == squeezed(reference.text):
        return True
    if reference.as_set is not None:
        return None
    return (phrase(final.expression) or final.expression.strip("() ").casefold()) == reference.phrase


def _by_set(final: _Final, reference: _Reference) -> bool | None:
    as_set = one_set(final.expression or final.sentence)
    if as_set is None:
        return None
    if as_set in (EMPTY, REALS) or reference.as_set in (EMPTY, REALS):
        return True if as_set == reference.as_set else None
    return _same(as_set, reference.as_set or reference.text)


def _by_expression(final: _Final, reference: _Reference) -> bool:
    """Compare as LaTeX; and the order of what is listed, where it counts."""
    expression = final.expression
    if not expression or has_words_between(expression) or all_differ(final.units, reference.units):
        return False
    if reference.number is not None and _COEFFICIENT.fullmatch(expression):
        return False
    if squeezed(expression) == squeezed(reference.text):
        return True
    answer = listed(expression)
    if reference.listed is None or answer is None:
        return _same(expression, reference.as_set or reference.text)
    if sorted((reference.listed.kind, answer.kind)) == ["column", "tuple"]:
        return equal_in_order(reference.listed, answer, _same)
    return _same(expression, reference.text) and has_its_order(reference.listed, answer, _same)


_RULES: tuple[Callable[[_Final, _Reference], bool | None], ...] = (
    *(_by_text, _by_numeral, _by_number, _by_angle, _by_words, _by_set, _by_expression),
)
"""The first of these that returns a verdict decides; the others return `None`."""


def _same(expression: str, reference: str) -> bool:
    return verify(list(_parsed(reference)), _parse(expression), allow_set_relation_comp=True, timeout_seconds=None)


def _value(expression: str) -> Fraction | None:
    """Return the value of an expression without variables, to thirty digits; `None` if it has none."""
    number = plain_number(expression)
    if number is not None or not expression or len(expression) > LONGEST_EXPRESSION:
        return number
    for parsed in _parse(expression)[:1]:
        if getattr(parsed, "is_number", False) and getattr(parsed, "is_real", False):
            return Fraction(str(parsed.evalf(30)))
    return None


def _units_at_end(text: str) -> list[Unit]:
    unit = unit_at_end(text)
    return [] if unit is None else [unit]


def _modulus(text: str) -> str | None:
    modulus = _MODULUS.search(without_latex(text))
    return modulus[1] if modulus else None


def _has_pi(expression: str) -> bool:
    return r"\pi" in as_latex(expression)


def _is_angle(units: Sequence[Unit]) -> bool:
    return any("angle" in unit.meanings for unit in units)


def _equal_numbers(number: Fraction, reference: Fraction) -> bool:
    """Compare two numbers: exactly, or to six decimals where one is a decimal."""
    if number == reference:
        return True
    rounded = 1 not in (number.denominator, reference.denominator) and round(number, 6) == round(reference, 6)
    return rounded and (_is_decimal(number) or _is_decimal(reference))


def _equal_share(completion: str, number: Fraction, reference: _Reference) -> bool:
    """Return whether one of two numbers is the other one as a percentage: 50% and 0.5, but not 50% and 0.5%."""
    assert reference.number is not None
    match _is_percentage(completion), any("percent" in unit.meanings for unit in reference.units):
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


@lru_cache(maxsize=1024)
def _parsed(reference: str) -> tuple[Any, ...]:
    return tuple(_parse(reference)) if len(reference) <= LONGEST_EXPRESSION else ()


def _parse(expression: str) -> list[Any]:
    boxed = rf"\boxed{{{as_latex(expression)}}}"
    return parse(boxed, _LATEX, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
