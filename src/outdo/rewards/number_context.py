r"""Decide by the text around a number whether it is an answer.

These are none: a number that is denied (`not 18`) or bounded (`18 or more`, see `outdo.rewards.bounds`), arithmetic
that was not carried out (`5-3`, `3/4 of 20`), a part of a formula (`2k+2`, `2a`), of several numbers (`18 or 20`), of a
quantity (`3 hours and 20 minutes`) or of a numeral in another base (`101_2`), and what others are counted out of
(20 in `18 out of 20`).
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from outdo.rewards.bounds import CONTEXT as WIDEST
from outdo.rewards.bounds import relation_around
from outdo.rewards.written_numbers import WrittenNumber

CONTEXT = 60
"""Characters before and after a number that decide whether it is an answer."""

DENIED = re.compile(
    r"""(?:\b(?:not|never|nor|cannot)\b|n't\b|≠|!=)
    (?:\s+(?:be|equal|equal\s+to|just|simply|the|exactly|quite|really|actually))*[\s(\[]*-?\Z""",
    re.IGNORECASE | re.VERBOSE,
)
"""Matches a text that denies what follows it: `it is not`."""

_DENIED_AFTER = re.compile(
    r"\W{0,3}(?:(?:is|was|were|are|would\s+be)\s+(?:too|not|wrong|incorrect|impossible|invalid)\b|(?:isn't|cannot|can't)\b)",
    re.IGNORECASE,
)
_OPERATOR = re.compile(
    r"[*/^]\s*[(\[{]*\s*-?\Z|\b(?:plus|times|mod(?:ulo)?|base|(?:half|thirds?|quarters?)\s+of|(?:divided|multiplied)\s+by)"
    r"\s*\Z",
    re.IGNORECASE,
)
_IN_FORMULA = re.compile(
    r"""(?:\\[a-zA-Z]+|[\^_}]|_\{?\w+\}?)\s*[\[{(]*\s*-?\Z      # \sqrt{18, x^{18, \log_2 18
    |[A-Za-z]\(\Z|[√|]\s*[({]?\s*-?\Z|\b(?:sqrt|sin|cos|tan|log|ln)\s*-?\Z""",
    re.VERBOSE,
)
_VARIABLE = r"[abcdefijnopqrtuvwxyzDEGHIOPQRSTUXYZ]"  # one-letter units are left out: m, s, h, g, L, C, F, V, W ...
_UNIT_OF_TWO = (
    "km|cm|mm|nm|kg|mg|lb|oz|m[lL]|[cd]l|ft|in|yd|mi|hr|hp|[ap]m|st|nd|rd|th|p[tcxg]|qt|[GMKT]B|kW|Hz|dB|Pa|[mn]s|k[JNV]"
    "|cc|pp|[mbt]n|ct|eV|mA"
)
_COEFFICIENT = (
    rf"(?:{_VARIABLE}|(?!(?:{_UNIT_OF_TWO})(?![\w']))[a-z]{{2}})(?![\w'])"
    rf"|\s+(?!i\.?e\b|e\.g|[apAP]\.\s?[mM]){_VARIABLE}(?=\s*(?:[-+*/^=)\]}},;!?.](?!\w)|\Z))"
)
_CONTINUED = re.compile(
    rf"""\s*[(\[]*\s*(?:[+*^](?!\s*\Z)|/(?!\s*\Z|(?!sqrt|pi\b)[A-Za-z]{{2}})      # but 18/hour
    |-\s*[\d(]|-[A-Za-z]|-\s+(?:[A-Za-z](?![A-Za-z])|sqrt)|                   # but 18 - that is all
    \.?\\[a-zA-Z]|√|π|[xyzn](?![\w'])|_|!(?=\w))
    |\s*and\s+(?:an?|one)\s+(?:half|third|quarter)\b|[ei](?=\W*\Z)          # 2 and a half; 5i
    |{_COEFFICIENT}|\s*\(?\s*(?i:(?:in\s+)?base\s+\w)                       # 2a; 101 in base 2
    |,\s*-?\.?\d|[A-Za-z]\d|[a-zA-Z](?=[+*/^])|[)\]}}]+\s*(?:\^|\*\*)|\|""",
    re.VERBOSE,
)
_VARIABLE_NEXT = re.compile(r"\s*(?:[-+*/]\s*)?\(?[A-Za-z](?![\w'])")
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

_OUT_OF = re.compile(
    r"(?:\bout\s+of|\A\s*(?:%|percent\b)?\s*of)(?:\s+(?:the|these|those|every|all|a|total|his|her|their|its|my|our)\b)*\s*\Z",
    re.IGNORECASE,
)
_SHARE_OF = re.compile(r"\s*(?:%|percent\b)?\s*of\b[^.;]{0,20}?\d", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[.!?;:](?=\s|\Z)|\n")
_SIGNS = re.compile(r"(?:[-+]\s*[(\[{]*\s*)+\Z|\b(?:minus|negative)\s*\Z", re.IGNORECASE)
_OPERAND = re.compile(r"[\d)\]}%]\s*(?:[A-Za-z]{1,2}\s*)?\Z|\w\Z|(?<![A-Za-z'])[A-Za-z]\s*\Z")


def value_in_context(numbers: Sequence[WrittenNumber], index: int, plain: str) -> Fraction | None:
    """Return the value of a number with its sign; `None` if the text around it makes it no answer.

    `numbers` are those of `plain`, a text of `outdo.rewards.written_numbers.plain_text`.
    """
    number = numbers[index]
    before = plain[max(0, number.start - WIDEST) : number.start]
    after = plain[number.end : number.end + WIDEST]
    no_answer = (
        any(pattern.search(before[-CONTEXT:]) for pattern in (DENIED, _OPERATOR, _IN_FORMULA))
        or any(pattern.match(after) for pattern in (_CONTINUED, _DENIED_AFTER))
        or relation_around(before, after)
        or _is_one_of_several(numbers, index, plain)
    )
    value = None if no_answer else number.value
    return None if value is None else _signed(value, before[-CONTEXT:])


def _is_one_of_several(numbers: Sequence[WrittenNumber], index: int, plain: str) -> bool:
    """Return whether a number is an alternative, a part of a quantity or a share, or what a share is taken of."""
    around = numbers[max(0, index - 1) : index + 2]
    gaps = [plain[first.end : second.start] for first, second in pairwise(around)]
    return (
        any(len(gap) <= CONTEXT and _ALTERNATIVE.search(gap) for gap in gaps)
        or any(_IN_PARTS.match(plain, first.end) for first in around[:-1])
        or _is_share(numbers[index], plain)
        or (index > 0 and len(gaps[0]) <= CONTEXT and _OUT_OF.search(gaps[0]) is not None)
    )


def has_variable(number: WrittenNumber, plain: str) -> bool:
    """Return whether a number stands in a formula before a variable: 3 in `18 = 3x` or `18 = 3 + x`."""
    return _VARIABLE_NEXT.match(plain, number.end) is not None


def is_whole(numbers: Sequence[WrittenNumber], index: int, plain: str) -> bool:
    """Return whether a number only tells what the number before it is counted out of: 20 in `18 eggs out of 20`."""
    if index == 0:
        return False
    gap = plain[numbers[index - 1].end : numbers[index].start]
    if len(gap) > CONTEXT or not _OUT_OF.search(gap) or _CLAUSE_END.search(gap):
        return False
    part, whole = numbers[index - 1].value, numbers[index].value
    return part is not None and whole is not None and part.denominator == 1 and part <= whole


def _is_share(number: WrittenNumber, plain: str) -> bool:
    """Return whether a number is a fraction or a percentage of another number: `3/4 of 20` was not computed."""
    share = _SHARE_OF.match(plain, number.end)
    if share is None:
        return False
    return "/" in number.match[0] or "%" in share[0] or "percent" in share[0].lower()


def _signed(value: Fraction, before: str) -> Fraction | None:
    signs = _SIGNS.search(before)
    if signs is None:
        return value
    if _OPERAND.search(before[: signs.start()]):
        return None  # a sum or a difference that was not computed
    if signs[0][-1].isspace() and before[: signs.start()].strip()[-1:] != "=" and signs[0].strip() == "-":
        return value  # a dash
    is_negative = signs[0].count("-") % 2 == 1 or signs[0][0].isalpha()
    return -value if is_negative else value
