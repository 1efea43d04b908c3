"""Rewards that compare the final answer with the reference: character by character, or as a number.

A final answer stands after `####`, the marker of GSM8K (Cobbe et al. 2021, arXiv 2110.14168).
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

ANSWER_MARKER = "####"
LONGEST_NUMBER = 100
"""Characters. A longer number is not an answer, and comparing it would take long."""

_NUMBER = re.compile(
    r"""(?P<minus>(?<![\w)])-)?\$?                        # but not the minus of 5-3
    (?P<digits>
        (?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2}(?![0-9]))?
        |\.[0-9]+
    )
    (?:/(?P<below>[0-9]+))?""",
    re.VERBOSE,
)
_LATEX_DOLLAR_OR_COMMA = {r"\$": "$", "{,}": ",", r"\!": "", "\N{MINUS SIGN}": "-"}


def exact(completion: str, answer: Any) -> bool:
    """Return True if the final answer equals the reference character by character, ignoring white space around both.

    The final answer is the whole completion, or the text after its last `####`; if there is no `####`, the text after
    its last `#` (`7+5=12#12`). The reference may be a worked solution that ends in `#### answer`.

    Raises:
        ValueError: there is no reference.
    """
    reference = reference_text(answer)
    return reference in (
        completion.strip(),
        completion.rpartition(ANSWER_MARKER if ANSWER_MARKER in completion else "#")[2].strip(),
    )


def last_number(completion: str, answer: Any) -> bool:
    r"""Return True if the completion's final number equals the reference's final number: `$1,234.00` is `1234`.

    The final number is the one on the first line after the last `####`; without a `####`, the one in the last
    `\boxed{...}`; without either, the last number of the text. A `####` or a box with no number or with several is not
    an answer, whatever stands before it. Thousands separators, `$`, `%`, units and a trailing period are ignored;
    `3/4` is one number.

    Raises:
        ValueError: the reference does not end in a number.
    """
    reference = final_number(str(answer))
    if reference is None:
        raise ValueError(f"the reference answer does not end in a number: {str(answer)[:80]!r}")
    return final_number(completion) == reference


def reference_text(answer: Any) -> str:
    """Return the reference: the text after the last `####`, or all of it, without white space around it.

    Raises:
        ValueError: the text is empty, or `answer` is None.
    """
    text = "" if answer is None else str(answer).rpartition(ANSWER_MARKER)[2].strip()
    if not text:
        raise ValueError("the reference answer is empty")
    return text


def final_number(text: str) -> Fraction | None:
    """Return the final number of `text`, as `last_number` defines it; `None` if there is none."""
    marked = text.rpartition(ANSWER_MARKER)[2].strip().partition("\n")[0] if ANSWER_MARKER in text else _boxed(text)
    numbers = list(_NUMBER.finditer(_without_latex(text if marked is None else marked)))
    if not numbers or (marked is not None and len(numbers) > 1):
        return None
    return _value(numbers[-1])


def _without_latex(text: str) -> str:
    for latex, plain in _LATEX_DOLLAR_OR_COMMA.items():
        text = text.replace(latex, plain)
    return text


def _boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, with balanced braces."""
    _, opening, rest = text.rpartition(r"\boxed{")
    depth = 1
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:position]
    return rest if opening else None


def _value(number: re.Match[str]) -> Fraction | None:
    if len(number[0]) > LONGEST_NUMBER or (number["below"] and int(number["below"]) == 0):
        return None
    value = Fraction(Decimal(number["digits"].replace(",", ""))) / int(number["below"] or 1)
    return -value if number["minus"] else value
