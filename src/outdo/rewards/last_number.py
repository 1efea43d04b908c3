r"""The reward `last_number`: whether the final answer of a completion is the number that the reference is.

`outdo.rewards.written_numbers` lists how a number may be written. Currency signs, percent signs, units, Markdown and
quotes around it are ignored; only a unit that differs from the reference's counts. `outdo.rewards.number_context` tells
when a number is no answer: one of several, denied, bounded, not carried out, or a part of something else.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from outdo.rewards.approximations import beside_decimal
from outdo.rewards.final_answer import LONGEST_ANSWER, after_cue, final_answer, final_sentence, reference_text
from outdo.rewards.number_context import CONTEXT, DENIED, has_variable, is_whole, value_in_context
from outdo.rewards.units import all_differ, units_of
from outdo.rewards.written_numbers import WrittenNumber, has_number, numbers_in, plain_text

MOST_NUMBERS = 100
"""A text with more numbers does not state one of them; reading all of them would take long."""

_QUALIFIED = re.compile(r"[^.;]{0,20}?(?:\b(?:or|and|to|of)\b|-|,)\s*\W*\Z")
_UNIT = re.compile(r"(?:\)?\s*%|\s*[A-Za-z]{2}[A-Za-z ./-]*|\s+[A-Za-z][A-Za-z ./-]*|\))?\s*")
_EQUALS = re.compile(r"(?<![<>!=])=+>?(?!=)|≈|≡|\bequals\b")
_REMARK = re.compile(
    r"\((?!\s*(?:or|and|in\s+base|base|at\s+(?:the\s+)?(?:very\s+)?(?:least|most)|max|maximum|minimum)\b)"
    r"(?=[^()]*[^\W\d_]{2})[^()]*\)"
)
_EXPLAINED = re.compile(
    rf"(\d[^\n.;()]{{0,25}})(?:{_REMARK.pattern}|\b(?:because|since)\b[^\n=.;]{{0,200}})[\s.!]{{0,9}}\Z", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|\Z)|\n")


def last_number(completion: str, answer: Any, prefill: str = "") -> bool:
    """Return True if the number that is the final answer equals the reference: `$1,234.00` is `1234`, and `1/2` is 0.5.

    The final answer is where `outdo.rewards.final_answer` finds it. At the end of a text it is the last number.

    Raises:
        ValueError: the reference is not one number.
    """
    reference, completion = reference_number(answer), prefill + completion
    if reference not in final_numbers(completion):
        return False
    units = units_of(reference_text(answer), reference)
    return not units or not all_differ(units_of(final_sentence(completion), reference), units)


def final_numbers(completion: str) -> list[Fraction]:
    """Return the numbers that are the final answer of a completion: of 2/3 ≈ 0.667 both, else at most one."""
    beside = beside_decimal(final_sentence(completion))
    exact = stated_number(beside.exact) if beside else None
    number = _final_number(completion)
    if beside is None or exact is None:
        return [] if number is None else [number]
    if not beside.agrees(exact):
        return [] if number in (None, exact) else [number]
    decimal = stated_number(beside.decimal)
    return list(dict.fromkeys(value for value in (exact, decimal, number) if value is not None))


def final_number(completion: str) -> Fraction | None:
    """Return the number that is the final answer of a completion, of 2/3 ≈ 0.667 the exact one; `None` if none is."""
    return next(iter(final_numbers(completion)), None)


def _final_number(completion: str) -> Fraction | None:
    final = final_answer(completion)
    if final is None:
        return None
    if final.stated:
        return stated_number(final.text)
    for sentence in after_cue(final.text):
        if has_number(plain := plain_text(sentence)):
            stated = stated_number(sentence)
            return _first_number(plain) if stated is None else stated
    return _last_number(_EXPLAINED.sub(r"\1", plain_text(final.text[-LONGEST_ANSWER:])))


def reference_number(answer: Any) -> Fraction:
    """Return the number that a reference is: alone, or with a currency sign, a percent sign or a unit.

    Raises:
        ValueError: it is something else, such as a formula, a time, a list or LaTeX.
    """
    text = reference_text(answer)
    number = None if "\\" in text else plain_number(text)
    if number is None:
        raise ValueError(f'the reference answer is not one number: {text[:80]!r}; the reward "math" compares formulas')
    return number


def stated_number(text: str) -> Fraction | None:
    """Return the number of a text that is an answer and nothing else; `None` if it has none, or several."""
    if len(text) > LONGEST_ANSWER:
        return None
    plain = re.sub(r"^-\s+(?=[\d.])", "-", _REMARK.sub(" ", plain_text(text)).strip())
    if re.search(r"\d!\Z", plain):
        return None  # a factorial
    sides = [side for side in _EQUALS.split(plain) if has_number(side)]
    numbers = numbers_in(sides[-1]) if sides else []
    if len(numbers) > MOST_NUMBERS or any(_is_tuple(number, sides[-1]) for number in numbers):
        return None
    parts = [index for index in range(len(numbers)) if not is_whole(numbers, index, sides[-1])]
    values = {value_in_context(numbers, index, sides[-1]) for index in parts}
    return values.pop() if len(values) == 1 else None


def _is_tuple(number: WrittenNumber, plain: str) -> bool:
    """Return whether brackets enclose a number that may be two: `(3,12)` is a point or an interval."""
    before, after = plain[: number.start].rstrip(" +-"), plain[number.end :].lstrip()
    return "," in number.match[0] and before.endswith(("(", "[", "{")) and after.startswith((")", "]", "}", "\\}"))


def plain_number(text: str) -> Fraction | None:
    """Return the number that `text` is, with at most a unit; `None` if it may be more: `2k` may be a formula."""
    plain = plain_text(text[:LONGEST_ANSWER]).strip().rstrip(".")
    numbers = numbers_in(plain)
    if len(numbers) != 1 or plain[: numbers[0].end].endswith(("k", "K")) or _is_tuple(numbers[0], plain):
        return None
    before, after = plain[: numbers[0].start].strip(), plain[numbers[0].end :]
    alone = re.fullmatch(r"[+-]?\(?[+-]?", before) and _UNIT.fullmatch(after)
    return value_in_context(numbers, 0, plain) if alone else None


def _last_number(plain: str) -> Fraction | None:
    """Return the last number of prose. If it is denied, the one before it in the same sentence counts: `17, not 18`."""
    numbers = numbers_in(plain)
    denied: set[Fraction | None] = set()
    for index in reversed(range(len(numbers))):
        number = numbers[index]
        if is_whole(numbers, index, plain):
            continue
        if denied and _SENTENCE_END.search(plain, number.end, numbers[index + 1].start):
            return None
        if DENIED.search(plain[max(0, number.start - CONTEXT) : number.start]):
            denied.add(number.value)
        elif not denied or number.value not in denied:
            value = value_in_context(numbers, index, plain)
            return _left_of_equals(numbers, index, plain) if value is None else value
    return None


def _first_number(plain: str) -> Fraction | None:
    """Return the first number of a sentence that states the answer, if nothing after it changes it."""
    numbers = numbers_in(plain)
    if len(numbers) > 1 and _QUALIFIED.match(plain[numbers[0].end : numbers[1].start]):
        return value_in_context(numbers, 0, plain) if is_whole(numbers, 1, plain) else None
    return value_in_context(numbers, 0, plain)


def _left_of_equals(numbers: Sequence[WrittenNumber], index: int, plain: str) -> Fraction | None:
    """Return the number before the last `=` of a text that ends in arithmetic: 18 in `18 = 9 * 2`."""
    equals = plain.rfind("=", 0, numbers[index].start)
    before = [position for position in range(index) if numbers[position].end <= equals]
    if (
        not before
        or has_variable(numbers[index], plain)
        or not re.fullmatch(r"[\d\s.,*+/^()-]*", plain[equals + 1 : numbers[index].start])
    ):
        return None
    last = before[-1]
    return value_in_context(numbers, last, plain) if not plain[numbers[last].end : equals].strip() else None
