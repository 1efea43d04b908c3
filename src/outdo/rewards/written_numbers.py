r"""Read numbers as people and models write them, for `last_number` and `math`: the grammar, without signs and context.

A number is `1,234.50`, `1 234`, `1,00,000`, `12,50`, `1.234,50`, `3/4`, `1 1/2`, `1.5e3`, `10^3`, `1.5 * 10^3`, `18k`,
`2 million`.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from outdo.rewards.notation import without_latex

LONGEST_NUMBER = 4000
"""Characters. A longer number is no answer, and comparing it would take long."""

LARGEST_EXPONENT = 400

_DIGITS = r"""
    (?: \d{1,3}(?:,\d{3})+ | \d{1,3}(?:[ ]\d{3})+ | \d{1,3}(?:_\d{3})+ | \d{1,3}(?:'\d{3})+  # thousands: 1,234
      | \d{1,2}(?:,\d{2})+,\d{3}                                                             # lakhs: 1,00,000
      | \d+ )(?![\d_]) (?:\.\d+(?!\d))?
    | (?<!\d)\.\d+"""
_POWER = r"(?:\^|\*\*)[ ]*\{?[ ]*"
_NUMBER = re.compile(
    rf"""(?<![\w^\\])(?<!\d[.,:/])                                           # not x2, \frac12, or a part of 10:30
    (?: (?P<european>[1-9]\d{{0,2}}(?:\.\d{{3}})+,\d\d)(?![\d,.]*\d)       # 1.234,50
    | (?P<other> \d+[.]\d+[.]\d[\d.]* | \d+(?::\d+)+(?::[\d.]+)? | \d+/\d+/\d[\d/]* | \d{{4}}-\d\d-\d\d )
    | (?P<whole>\d+)[ ]+(?P<above>\d+)[ ]*/[ ]*(?P<below>\d+)(?![\d/])       # 1 1/2
    | (?P<base>\d+)[ ]*{_POWER}(?P<exponent>[+-]?\d+)[ ]*\}}?                # 10^3
    | (?P<digits>{_DIGITS})
      (?: [eE](?P<e>[+-]?\d+)(?!\w)                                          # 1.5e3
        | [ ]*[*x][ ]*10[ ]*{_POWER}(?P<ten>[+-]?\d+)[ ]*\}}?                 # 1.5 * 10^3, 3 x 10^8
        | [ ]*/[ ]*(?P<denominator>\d+)(?![\d/.,]*\d) )?                     # 3/4
      (?P<decimals>(?<=\d),\d\d(?![\d,]))?                                   # 12,50
    )""",
    re.VERBOSE,
)
_POWER_OF_TEN = {"k": 3, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(r"k(?!\w)|\s*(?:thousand|million|billion|trillion)\b", re.IGNORECASE)
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\s*\^\s*(?:\{\s*-?\d+\s*\}|-?\d+)")
_MODULUS = re.compile(r"(?<![\d.,])(\d{1,99})\s*\(?\s*mod(?:ulo)?\s*(\d{1,99})(?!\d)\s*\)?", re.IGNORECASE)
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*\n]*[^\s*])\1(?![\w*])")
_MARKS = re.compile(r"""[$€£¥₹₩₽¢`"]+|(?<!\w)'|'(?!\w)|(?<!\w)_+|_+(?!\w)|(?:US|USD|EUR|Rs\.?)(?=\s*[$]?\d)""")


@dataclass(frozen=True, slots=True)
class WrittenNumber:
    """A number in a text, without its sign."""

    match: re.Match[str]
    end: int
    power_of_ten: int  # 3 for `18k`

    @property
    def start(self) -> int:
        """The position of its first character in the text."""
        return self.match.start()

    @property
    def value(self) -> Fraction | None:
        """The value; `None` for a time, a date, a version, two separators of decimals (`0.5,12`), and a number that is
        too large or divides by 0.
        """
        if len(self.match[0]) > LONGEST_NUMBER or self.match["other"]:
            return None
        value = _value(self.match)
        return None if value is None else value * 10**self.power_of_ten


def plain_text(text: str) -> str:
    """Return the text without what may surround a number: currency signs, quotes, Markdown, LaTeX, powers of units, and
    the modulus of a residue: `7 (mod 11)` is 7.
    """
    return _MODULUS.sub(_residue, _UNIT_POWER.sub("", _MARKS.sub("", _EMPHASIS.sub(r"\2", without_latex(text)))))


def numbers_in(plain: str) -> list[WrittenNumber]:
    """Return the numbers of a plain text, in their order."""
    return [_scaled(match) for match in _NUMBER.finditer(plain)]


def has_number(plain: str) -> bool:
    """Return whether a plain text has a number."""
    return _NUMBER.search(plain) is not None


def _residue(match: re.Match[str]) -> str:
    return match[1] if int(match[1]) < int(match[2]) else match[0]  # 18 mod 11 was not computed


def _scaled(match: re.Match[str]) -> WrittenNumber:
    scale = _SCALE.match(match.string, match.end())
    if scale is None:
        return WrittenNumber(match, match.end(), 0)
    return WrittenNumber(match, scale.end(), _POWER_OF_TEN[scale[0].strip().lower()])


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a match; `None` as for `WrittenNumber.value`."""
    if match["whole"]:
        below = int(match["below"])
        return int(match["whole"]) + Fraction(int(match["above"]), below) if below else None
    if match["base"]:
        return _power(int(match["base"]), int(match["exponent"]))
    if match["decimals"] and "." in match["digits"]:
        return None
    digits = _digits(match)
    exponent, denominator = int(match["e"] or match["ten"] or 0), int(match["denominator"] or 1)
    fits = abs(exponent) <= LARGEST_EXPONENT and denominator != 0
    return Fraction(Decimal(digits)) * Fraction(10) ** exponent / denominator if fits else None


def _digits(match: re.Match[str]) -> str:
    if match["european"]:
        return match["european"].replace(".", "").replace(",", ".")
    return re.sub("[ ,_']", "", match["digits"]) + (match["decimals"] or "").replace(",", ".")


def _power(base: int, exponent: int) -> Fraction | None:
    fits = base.bit_length() * abs(exponent) <= 4 * LARGEST_EXPONENT and (base or exponent > 0)
    return Fraction(base) ** exponent if fits else None
