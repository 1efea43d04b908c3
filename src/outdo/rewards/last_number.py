r"""The reward `last_number`: whether the final answer of a completion is the number that the reference is.

`outdo.rewards.written_numbers` lists how a number may be written. Currency signs, percent signs, units, Markdown and
quotes around it are ignored. These are no answer: one of several numbers (`18 or 20`, `18-20`), a number that is denied
(`not 18`) or only bounded (`more than 18`), arithmetic that was not carried out (`5-3`), a part of a formula (`2k+2`),
and a part of a quantity (`3 hours and 20 minutes`, `2 and a half`).
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from outdo.rewards.final_answer import LONGEST_ANSWER, after_cue, final_answer, reference_text
from outdo.rewards.written_numbers import WrittenNumber, has_number, numbers_in, plain_text

CONTEXT = 60
"""Characters before and after a number that decide whether it is an answer."""

DENIED = re.compile(
    r"""(?:\b(?:not|never|nor|cannot)\b|n't\b|≠|!=)
    (?:\s+(?:be|equal|equal\s+to|just|simply|the|exactly))*[\s(\[]*-?\Z""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches a text that denies what follows it: `it is not`."""

_BOUNDED = re.compile(
    r"""(?:\b(?:more|less|fewer|greater|larger|smaller|higher|lower|other)\s+than|\bat\s+(?:least|most)|\bnearly|\balmost
    |(?<![=-])>=?|[<≤≥±]=?|\\(?:leq?|geq?|lt|gt|neq?|pm)(?![a-zA-Z]))[\s(\[]*-?\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_OPERATOR = re.compile(r"[*/^]\s*[(\[{]*\s*-?\Z|\b(?:plus|times|(?:divided|multiplied)\s+by)\s*\Z", re.IGNORECASE)
_IN_FORMULA = re.compile(
    r"""(?:\\[a-zA-Z]+|[\^_}]|_\{?\w+\}?)\s*[\[{(]*\s*-?\Z      # \sqrt{18, x^{18, \log_2 18
    |[A-Za-z]\(\Z|[√|]\s*[({]?\s*-?\Z|\b(?:sqrt|sin|cos|tan|log|ln)\s*-?\Z""",
    re.VERBOSE,
)
_CONTINUED = re.compile(
    r"""\s*[(\[]*\s*(?:[+*^](?!\s*\Z)|/(?!\s*\Z|(?!sqrt|pi\b)[A-Za-z]{2})      # but 18/hour
    |-\s*[\d(]|-[A-Za-z]|-\s+(?:[A-Za-z](?![A-Za-z])|sqrt)|                 # but 18 - that is all
    \.?\\[a-zA-Z]|√|π|[xyzn](?![\w'])|_|!(?=\w))
    |\s*and\s+(?:an?|one)\s+(?:half|third|quarter)\b|[ei](?=\W*\Z)        # 2 and a half; 5i
    |,\s*-?\.?\d|[A-Za-z]\d|[a-zA-Z](?=[+*/^])|[)\]}]+\s*(?:\^|\*\*)|\|""",
    re.VERBOSE,
)
_ALTERNATIVE = re.compile(
    r"(?:^|\s)(?:or|and/or)\W*\Z|^\s*(?:and|to|through|&|;|\.\.+|-+)\s*-?\s*\Z|^\s*,\s*-?\s*\Z", re.IGNORECASE
)
_IN_PARTS = re.compile(
    "|".join(
        rf"[\s-]*{unit}\.?\s*(?:and\s+)?(?!0+\b)\d[\d.]*[\s-]*{unit}\b"
        for unit in (
            "(?:years?|months?|weeks?|days?|hours?|hrs?|h|minutes?|mins?|seconds?|secs?)",
            "(?:yards?|feet|foot|ft|inch(?:es)?|in)",
            "(?:dollars?|euros?|pounds?|cents?|pence)",
            "(?:pounds?|lbs?|ounces?|oz)",
        )
    ),
    re.IGNORECASE,
)
"""Matches what follows the first number of 3 hours and 20 minutes."""

_SIGN = re.compile(r"[-+]\s*[(\[{]*\s*\Z|\b(?:minus|negative)\s*\Z", re.IGNORECASE)
_OPERAND = re.compile(r"[\d)\]}%]\s*(?:[A-Za-z]{1,2}\s*)?\Z|\w\Z|(?<![A-Za-z'])[A-Za-z]\s*\Z")
_QUALIFIED = re.compile(r"[^.;]{0,20}?(?:\b(?:or|and|to|of)\b|-|,)\s*\W*\Z")
_UNIT = re.compile(r"(?:\)?\s*%|\s*[A-Za-z]{2}[A-Za-z ./-]*|\s+[A-Za-z][A-Za-z ./-]*|\))?\s*")
_EQUALS = re.compile(r"(?<![<>!=])=+>?(?!=)|≈|\bequals\b")
_REMARK = re.compile(r"\((?=[^()]*[^\W\d_]{2})[^()]*\)")
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
    return final_number(prefill + completion) == reference_number(answer)


def final_number(completion: str) -> Fraction | None:
    """Return the number that is the final answer of a completion; `None` if it is none."""
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
    if any(_is_tuple(number, sides[-1]) for number in numbers):
        return None
    values = {_value_in_context(numbers, index, sides[-1]) for index in range(len(numbers))}
    return values.pop() if len(values) == 1 else None


def _is_tuple(number: WrittenNumber, plain: str) -> bool:
    """Return whether brackets enclose a number that may be two: `(3,12)` is a point or an interval."""
    before, after = plain[: number.start].rstrip(), plain[number.end :].lstrip()
    return "," in number.found[0] and before.endswith(("(", "[", "{")) and after.startswith((")", "]", "}", "\\}"))


def plain_number(text: str) -> Fraction | None:
    """Return the number that `text` is, with at most a unit; `None` if it may be more: `2k` may be a formula."""
    plain = plain_text(text[:LONGEST_ANSWER]).strip().rstrip(".")
    numbers = numbers_in(plain)
    if len(numbers) != 1 or plain[: numbers[0].end].endswith(("k", "K")) or _is_tuple(numbers[0], plain):
        return None
    before, after = plain[: numbers[0].start].strip(), plain[numbers[0].end :]
    alone = re.fullmatch(r"[+-]?\(?[+-]?", before) and _UNIT.fullmatch(after)
    return _value_in_context(numbers, 0, plain) if alone else None


def _last_number(plain: str) -> Fraction | None:
    """Return the last number of prose. If it is denied, the one before it in the same sentence counts: `17, not 18`."""
    numbers = numbers_in(plain)
    denied: set[Fraction | None] = set()
    for index in reversed(range(len(numbers))):
        number = numbers[index]
        if denied and _SENTENCE_END.search(plain, number.end, numbers[index + 1].start):
            return None
        if DENIED.search(plain[max(0, number.start - CONTEXT) : number.start]):
            denied.add(number.value)
        elif not denied or number.value not in denied:
            value = _value_in_context(numbers, index, plain)
            return _left_of_equals(numbers, index, plain) if value is None else value
    return None


def _first_number(plain: str) -> Fraction | None:
    """Return the first number of a sentence that states the answer, if nothing after it changes it."""
    numbers = numbers_in(plain)
    if len(numbers) > 1 and _QUALIFIED.match(plain[numbers[0].end : numbers[1].start]):
        return None
    return _value_in_context(numbers, 0, plain)


def _left_of_equals(numbers: Sequence[WrittenNumber], index: int, plain: str) -> Fraction | None:
    """Return the number before the last `=` of a text that ends in arithmetic: 18 in `18 = 9 * 2`."""
    equals = plain.rfind("=", 0, numbers[index].start)
    before = [position for position in range(index) if numbers[position].end <= equals]
    if not before or not re.fullmatch(r"[\d\s.,*+/^()-]*", plain[equals + 1 : numbers[index].start]):
        return None
    last = before[-1]
    return _value_in_context(numbers, last, plain) if not plain[numbers[last].end : equals].strip() else None


def _value_in_context(numbers: Sequence[WrittenNumber], index: int, plain: str) -> Fraction | None:
    """Return the value of a number with its sign; `None` if the text around it makes it no answer."""
    number = numbers[index]
    before = plain[max(0, number.start - CONTEXT) : number.start]
    around = numbers[max(0, index - 1) : index + 2]
    gaps = [plain[first.end : second.start] for first, second in pairwise(around)]
    no_answer = (
        any(pattern.search(before) for pattern in (DENIED, _BOUNDED, _OPERATOR, _IN_FORMULA))
        or _CONTINUED.match(plain[number.end : number.end + CONTEXT])
        or any(len(gap) <= CONTEXT and _ALTERNATIVE.search(gap) for gap in gaps)
        or any(_IN_PARTS.match(plain, first.end) for first in around[:-1])
    )
    value = None if no_answer else number.value
    return None if value is None else _signed(value, before)


def _signed(value: Fraction, before: str) -> Fraction | None:
    sign = _SIGN.search(before)
    if sign is None:
        return value
    if _OPERAND.search(before[: sign.start()]):
        return None  # a sum or a difference that was not computed
    is_dash = sign[0].startswith("-") and sign[0][-1].isspace() and before[: sign.start()].strip()[-1:] != "="
    return value if is_dash or sign[0].startswith("+") else -value
