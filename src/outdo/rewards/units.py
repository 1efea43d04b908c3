r"""Read the unit of measurement beside a value: `5 km`, `\$5`, `90^\circ`, `15 \text{ cm}^2`, `60 miles per hour`.

Two answers with different units are different answers; one without a unit, or with another word (`18 apples`), is
compared by its value alone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from outdo.rewards.notation import without_latex
from outdo.rewards.written_numbers import numbers_in

_WORDS = {
    "kilometer": "km kms kilometer kilometers kilometre kilometres",
    "meter": "m meter meters metre metres",
    "centimeter": "cm cms centimeter centimeters centimetre centimetres",
    "millimeter": "mm millimeter millimeters millimetre millimetres",
    "mile": "mi mile miles mph",
    "yard": "yd yds yard yards",
    "foot": "ft foot feet",
    "inch": "in inch inches",
    "kilogram": "kg kgs kilogram kilograms kilo kilos",
    "gram": "g gram grams gramme grammes",
    "milligram": "mg milligram milligrams",
    "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces",
    "ton": "ton tons tonne tonnes",
    "liter": "l L liter liters litre litres",
    "milliliter": "ml mL milliliter milliliters millilitre millilitres",
    "gallon": "gal gallon gallons",
    "quart": "qt quart quarts",
    "pint": "pt pint pints",
    "second": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "dollar": "$ dollar dollars usd buck bucks",
    "cent": "¢ cent cents",
    "euro": "€ euro euros eur",
    "sterling": "£ gbp pound pounds",
    "yen": "¥ yen jpy",
    "rupee": "₹ rupee rupees rs inr",
    "percent": "% percent pct",
    "angle": "degree degrees deg",
    "celsius": "C celsius degree degrees",
    "fahrenheit": "F fahrenheit degree degrees",
    "radian": "rad radian radians",
    "morning": "am a.m.",
    "afternoon": "pm p.m.",
}
_MEANINGS: dict[str, frozenset[str]] = {}
for _name, _words in _WORDS.items():
    for _word in _words.split():
        _MEANINGS[_word] = _MEANINGS.get(_word, frozenset()) | {_name}
_ALONE = "|".join(sorted((re.escape(word) for word in _MEANINGS), key=len, reverse=True))
_UNIT = re.compile(
    rf"""[\s-]*(?P<power_word>(?:square|sq\.?|cubic|cu\.?)\s+)?(?P<word>(?i:{_ALONE}))(?![A-Za-z])
    (?:\s*\^?\s*\{{?\s*(?P<power>[23])(?![\d.])\s*\}}?)?
    (?:\s+(?P<scale>[Cc]elsius|[Ff]ahrenheit|C|F)\b)?
    (?:\s*(?:/|\bper\b|\ban?\b|\bevery\b)\s*(?P<per>[A-Za-z]+))?""",
    re.VERBOSE,
)
_UNIT_AT_END = re.compile(rf"(?<=[\s\d)}}\]π])(?:{_UNIT.pattern})\s*[.)]*\s*\Z", re.VERBOSE)
_SET_UPRIGHT = re.compile(r"\\(?:text\w*|mathrm|mbox|operatorname)\s*\{")
_FORMULA = re.compile(r"(?<![\\\w])\${1,2}((?:\\\$|[^$\n]){1,200}?)(?<!\\)\${1,2}(?!\d)")
_INCH = re.compile(r"\s*(?:[.,;:!?)^]|\Z)")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of measurement."""

    meanings: frozenset[str]  # several of an ambiguous word: pounds
    power: int
    per: frozenset[str]

    def differs(self, other: "Unit") -> bool:
        """Return whether both cannot be the same unit. Of `km` and `km/h`, the first leaves something out."""
        rates_differ = bool(self.per and other.per) and not self.per & other.per
        return not self.meanings & other.meanings or self.power != other.power or rates_differ


def units_of(text: str, value: Fraction) -> list[Unit]:
    """Return the units beside the numbers of a text that have this value, with either sign."""
    text = without_latex(_undelimited(text))
    units = [
        _after(text, number.end) or _currency_before(text, number.start)
        for number in numbers_in(text)
        if number.value is not None and abs(number.value) == abs(value)
    ]
    return [unit for unit in units if unit is not None]


def unit_at_end(expression: str) -> Unit | None:
    r"""Return the unit with which an expression ends: cm² of `8\pi \text{ cm}^2`; `None` if it ends with none."""
    end = _UNIT_AT_END.search(without_latex(_undelimited(expression))[-80:])
    if end is None or (len(end["word"]) == 1 and end["word"].isalpha() and not _SET_UPRIGHT.search(expression)):
        return None
    return _unit(end)


def without_unit(text: str) -> str:
    r"""Return a text without the unit in words with which it ends: `8\pi` for `8\pi square centimetres`."""
    end = _UNIT_AT_END.search(text[-80:])
    if end is None or (len(end["word"]) == 1 and end["word"].isalpha()):
        return text
    return text[: len(text) - len(end[0])].rstrip(" -")


def all_differ(units: Iterable[Unit], reference: Iterable[Unit]) -> bool:
    """Return whether both have units, and none of the first can be one of the second."""
    mine, theirs = list(units), list(reference)
    return bool(mine and theirs) and all(one.differs(other) for one in mine for other in theirs)


def _undelimited(text: str) -> str:
    """Return a text without the dollar signs of formulas, which are no currency."""
    return _FORMULA.sub(r" \1 ", text)


def _after(text: str, position: int) -> Unit | None:
    unit = _UNIT.match(text, position)
    if unit is None or (unit["word"].lower() == "in" and not _INCH.match(text, unit.end())):
        return None  # 18 in total
    return _unit(unit)


def _currency_before(text: str, position: int) -> Unit | None:
    sign = re.search(r"(?:([$€£¥₹])|\b(USD|EUR|GBP|Rs)\.?)\s*-?\s*\Z", text[max(0, position - 8) : position])
    return None if sign is None else Unit(_MEANINGS[(sign[1] or sign[2]).lower()], 1, frozenset())


def _unit(match: re.Match[str]) -> Unit | None:
    word = match["word"]
    meanings = _MEANINGS.get(word) or _MEANINGS.get(word.lower() if len(word) > 1 else word)
    if meanings is None:
        return None
    if scale := match["scale"]:
        meanings = frozenset(("celsius" if scale in ("C", "celsius", "Celsius") else "fahrenheit",))
    power = int(match["power"] or {"s": 2, "c": 3}.get((match["power_word"] or " ")[0], 1))
    per = "hour" if word.lower() == "mph" else match["per"]
    return Unit(meanings, power, _MEANINGS.get(per, frozenset((per.rstrip("s"),))) if per else frozenset())
