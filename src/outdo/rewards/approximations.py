r"""Find an exact value with a decimal beside it: `\frac{2}{3} \approx 0.667`, `5/9, or about 0.556`, `22/7 (3.14)`."""

import re
from dataclasses import dataclass
from fractions import Fraction

from outdo.rewards.notation import one_notation
from outdo.rewards.written_numbers import numbers_in, plain_text

LONGEST = 300
"""Characters of the end of an answer in which both stand."""

_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]|\*\*")
_TEXT = re.compile(r"\\(?:text(?:rm|bf|it|normal)?|mathrm|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:[,;:! ]|q?quad(?![a-zA-Z])|left(?![a-zA-Z])|right(?![a-zA-Z]))|~(?=\()")
_DECIMAL = r"-?(?:\\?[$]|[€£])?\d[\d,]*(?:\.\d+)?(?:\s*\\?%|\s*(?:percent|thousand|million|billion)\b)?"
_ALMOST = r"(?:≈|≃|≅|\\(?:approx|simeq|doteq|cong|sim)(?![a-zA-Z])|~)"
_ABOUT = rf"(?:(?:about|approximately|roughly|around)\b|approx\b\.?|{_ALMOST})"
_ALSO = r"(?:(?:or|ie|that\s+is|which\s+is|which\s+equals|which\s+means|is|and)\b,?\s*|i\.e\.,?\s*)?"
_END = r"(?:\.\.\.|\\[cl]?dots)?(?:\s+[a-zA-Z][a-zA-Z ]{0,30})?\s*[)\]]?[\s.!]{0,4}\Z"
_THEN_DECIMAL = re.compile(
    rf"""[\s,;]*(?:{_ALMOST}\s*|(?<![<>!=])=\s*|[(\[]?\s*{_ALSO}{_ABOUT}\s*|\(\s*(?:or\s+|=\s*)?|,?\s(?:or|i\.e\.,?|that\s+is,?)\s+)(?P<decimal>{_DECIMAL}){_END}""",
    re.VERBOSE,
)
_THEN_EXACT = re.compile(
    rf"""(?<![\w.,/^{{])(?P<decimal>{_DECIMAL})\s*(?:,?\s*(?:or|i\.e\.,?|that\s+is,?|which\s+is)\s+(?:exactly\s+)?|\(\s*(?:or\s+|exactly\s+|=\s*)?)
    (?P<exact>[^(),;]{{1,60}})\)?[\s.!]{{0,4}}\Z""",
    re.VERBOSE,
)
_EXACT = re.compile(r"/|\\[a-z]*frac|\\sqrt|√|\\pi|π|\bpi\b|sqrt|\^|\\(?:ln|log|sin|cos|tan|overline)")


@dataclass(frozen=True, slots=True)
class Beside:
    """An exact value and the decimal that stands beside it."""

    exact: str
    """The text up to the exact value, or the value alone, without dollar signs."""
    decimal: str

    def agrees(self, exact: Fraction) -> bool:
        """Return whether the decimal is this value, rounded or cut off at its last digit."""
        plain = plain_text(self.decimal)
        numbers = numbers_in(plain)
        if len(numbers) != 1 or (value := numbers[0].value) is None:
            return False
        value = -value if plain.strip().startswith("-") else value
        digits = len(numbers[0].match[0].partition(".")[2]) - numbers[0].power_of_ten
        if "%" in plain or "percent" in plain:
            value, digits = value / 100, digits + 2
        step = Fraction(10) ** -digits
        is_cut_off = value * exact >= 0 and 0 <= abs(exact) - abs(value) < step
        return is_cut_off or abs(exact - value) <= step / 2


def beside_decimal(text: str) -> Beside | None:
    """Return the exact value and the decimal with which an answer ends; `None` if it does not end with both."""
    text = one_notation(text[-LONGEST:])
    text = _SPACING.sub(" ", _TEXT.sub(r" \1 ", _DELIMITER.sub("", text.replace("\\$", "$")))).strip()
    if (decimal := _THEN_DECIMAL.search(text)) and _EXACT.search(text, max(0, decimal.start() - 40), decimal.start()):
        return Beside(text[: decimal.start()].strip(" ,;"), decimal["decimal"])
    if (decimal := _THEN_EXACT.search(text)) and _EXACT.search(decimal["exact"]):
        return Beside(decimal["exact"].strip(), decimal["decimal"])
    return None
