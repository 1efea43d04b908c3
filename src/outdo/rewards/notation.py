r"""Write the text of a model in one notation, so that a matcher needs one form of each sign.

Models write the same number in full-width digits, with a no-break space, a typographic minus sign or `\,` between its
thousands, in bold type, or in LaTeX that only sets type.
"""

import re
import unicodedata

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2014\u2015", " - "),  # these separate sentences, and are no minus signs
        **dict.fromkeys("\u2044\u2215\u00f7", "/"),
        **dict.fromkeys("\u00d7\u22c5\u00b7\u2217\u2219", "*"),
        **dict.fromkeys("\u2018\u2019\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u00ab\u00bb", '"'),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f", ""),
    }
)
_TYPESETTING = [
    (re.compile(r"\\!\s*|\\(?:displaystyle|textstyle|left|right|limits)(?![a-zA-Z])|\\[()\[\]]"), ""),
    (re.compile(r"\\[,;: ]|(?<!\\)~|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick)space(?![a-zA-Z])"), " "),
    (re.compile(r"\s*\{\s*([,:])\s*\}\s*"), r"\1"),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (
        re.compile(r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname)\s*\{([^{}]*)\}"),
        r" \1 ",
    ),
    (re.compile(r"\s*\^\s*(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])|°"), " degrees "),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\(?:approx|simeq|doteq)(?![a-zA-Z])"), "≈"),
    (re.compile(r"\\l(?:eq?|eqq|eqslant)(?![a-zA-Z])"), "≤"),
    (re.compile(r"\\g(?:eq?|eqq|eqslant)(?![a-zA-Z])"), "≥"),
    (re.compile(r"\\(?:lt|ll)(?![a-zA-Z])"), "<"),
    (re.compile(r"\\(?:gt|gg)(?![a-zA-Z])"), ">"),
    (re.compile(r"\\neq?(?![a-zA-Z])"), "≠"),
    (re.compile(r"\\(?:pm|mp)(?![a-zA-Z])"), "±"),
    (re.compile(r"\\equiv(?![a-zA-Z])"), "≡"),
    (re.compile(r"\\colon(?![a-zA-Z])"), ":"),
    (re.compile(r"\\pmod\s*(?:\{([^{}]*)\}|(\d))"), r" (mod \1\2) "),
    (re.compile(r"\\b?mod(?![a-zA-Z])"), " mod "),
    (re.compile(r"\\(?:(?:R|Longr)ightarrow|implies)(?![a-zA-Z])"), "=>"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\?\$"), "$"),
]
_PART = r"(?:\{\s*([+-]?)\s*([\d.,]+)\s*\}|(\d))"
_FRACTION = re.compile(rf"(\d?)(\s*)\\frac\s*{_PART}\s*{_PART}")


def one_notation(text: str) -> str:
    """Return the text with ASCII digits, `-`, `*`, `/`, straight quotes and single spaces: `½` is 1/2 and `²` is ^2."""
    text = re.sub("[⁰¹²³⁴-⁹⁺⁻]+", lambda match: "^" + match[0].translate(_SUPERSCRIPTS), text)
    text = re.sub(r"\d?[¼-¾⅐-⅞]", _vulgar_fraction, text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = text if text.isascii() else re.sub(r"[^\x00-\x7f]", _digit_or_space, text)
    return re.sub(r"\s+", lambda match: "\n" if "\n" in match[0] else " ", text)  # else patterns with \s* take long


def without_latex(text: str) -> str:
    r"""Return the text in one notation, without the LaTeX that only sets type; a `\frac` of two numbers becomes a/b."""
    text = one_notation(text)
    for pattern, replacement in _TYPESETTING:
        text = pattern.sub(replacement, text)
    return _FRACTION.sub(_fraction, text)


def _fraction(match: re.Match[str]) -> str:
    digit, space, sign, above, above_digit, other_sign, below, below_digit = match.groups("")
    fraction = f"{above or above_digit}/{below or below_digit}"
    if "-" in (sign, other_sign) and sign != other_sign:
        return f"{digit}{space}(-{fraction})"
    return f"{digit}{' ' if digit else space}{fraction}"  # 1\frac{1}{2} is 1 1/2


def _vulgar_fraction(match: re.Match[str]) -> str:
    whole, fraction = match[0][:-1], unicodedata.normalize("NFKC", match[0][-1])
    return f"{whole} {fraction}" if whole else fraction


def _digit_or_space(match: re.Match[str]) -> str:
    category = unicodedata.category(match[0])
    if category == "Nd":
        return str(unicodedata.decimal(match[0]))
    return " " if category == "Zs" else match[0]
