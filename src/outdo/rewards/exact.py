"""Rewards that compare the final answer with the reference: character by character, or as a number.

Final answers are written after `####`, the mark of GSM8K (Cobbe et al. 2021, arXiv 2110.14168).
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

MARK = "####"
LONGEST_NUMBER = 100
"""Characters. A longer run of digits is no answer, and comparing it would take time."""

_NUMBER = re.compile(
    r"""(?P<minus>(?<![\w)])-)?\$?                        # not the minus of 5-3
    (?P<digits>
        (?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2}(?![0-9]))?
        |\.[0-9]+
    )
    (?:/(?P<below>[0-9]+))?""",
    re.VERBOSE,
)
_LATEX_DOLLAR_OR_COMMA = {r"\$": "$", "{,}": ",", r"\!": "", "\N{MINUS SIGN}": "-"}


def exact(completion: str, answer: Any) -> bool:
    """True if the final answer is the reference, character by character, without the space around it.

    The final answer is the whole completion, or what stands after its last `####`, or, where there is none, after its
    last `#` (`7+5=12#12`). The reference may be a worked solution that ends in `#### answer`.

    Raises:
        ValueError: there is no reference.
    """
    reference = reference_text(answer)
    return reference in (completion.strip(), completion.rpartition(MARK if MARK in completion else "#")[2].strip())


def last_number(completion: str, answer: Any) -> bool:
    r"""True if the completion's final number equals the reference's, as a number: `$1,234.00` is `1234`.

    The final number is the one on the first line after the last `####`; where there is no such mark, the one in the
    last `\boxed{...}`; and without one of those the last number of the text. A mark or a box that does not hold just
    one number is no answer, whatever stands before it. Thousands separators, `$`, `%`, units and a trailing period do
    not count; `3/4` is one number.

    Raises:
        ValueError: the reference does not end in a number.
    """
    reference = final_number(str(answer))
    if reference is None:
        raise ValueError(f"the reference answer does not end in a number: {str(answer)[:80]!r}")
    return final_number(completion) == reference


def reference_text(answer: Any) -> str:
    """The reference: what stands after the last `####`, or all of it, without the space around it.

    Raises:
        ValueError: that is empty, or `answer` is None.
    """
    text = "" if answer is None else str(answer).rpartition(MARK)[2].strip()
    if not text:
        raise ValueError("the reference answer is empty")
    return text


def final_number(text: str) -> Fraction | None:
    """The number that `text` ends in, read as `last_number` says; `None` where there is none."""
    marked = text.rpartition(MARK)[2].strip().partition("\n")[0] if MARK in text else _boxed(text)
    numbers = list(_NUMBER.finditer(_plain(text if marked is None else marked)))
    if not numbers or (marked is not None and len(numbers) > 1):
        return None
    return _value(numbers[-1])


def _plain(text: str) -> str:
    for latex, plain in _LATEX_DOLLAR_OR_COMMA.items():
        text = text.replace(latex, plain)
    return text


def _boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces balanced."""
    _, found, rest = text.rpartition(r"\boxed{")
    depth = 1
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:position]
    return rest if found else None


def _value(number: re.Match[str]) -> Fraction | None:
    if len(number[0]) > LONGEST_NUMBER or (number["below"] and int(number["below"]) == 0):
        return None
    value = Fraction(Decimal(number["digits"].replace(",", ""))) / int(number["below"] or 1)
    return -value if number["minus"] else value
