r"""Find the expression that is the final answer of a completion, as LaTeX text. `math` parses and compares it.

Nothing is parsed here, so this file needs no optional package and cannot run for ever.
"""

import re
from typing import Any

from outdo.rewards.final_answer import LONGEST_ANSWER, after_cue, final_answer, reference_text
from outdo.rewards.last_number import DENIED, final_number, plain_number, stated_number
from outdo.rewards.notation import one_notation, without_latex

LONGEST_EXPRESSION = 1000
"""Characters. The longest answer of MATH (Hendrycks et al. 2021, arXiv 2103.03874) has fewer than 200."""

_DELIMITED = re.compile(
    r"(?<!\\)\$\$(?P<a>.+?)(?<!\\)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)|(?<!\\)\$(?P<d>(?:\\\$|[^$\n])+?)(?<!\\)\$",
    re.DOTALL,
)
_JOINED = re.compile(r"\s*(?:,|;|\band\b|\bor\b|,\s*(?:and|or)\b)\s*")
_FUNCTIONS = "sqrt|pi|sin|cos|tan|cot|sec|csc|log|ln|exp|abs|arcsin|arccos|arctan|infinity|and|or"
_BARE = re.compile(rf"(?:(?:\\[a-zA-Z]+|(?<![a-zA-Z])(?:{_FUNCTIONS}|[a-zA-Z])(?![a-zA-Z])|[^a-zA-Z:?!])+)\Z")
_PROSE_WORD = re.compile(rf"(?<![\\a-zA-Z])(?!(?:{_FUNCTIONS})(?![a-zA-Z]))[a-zA-Z]{{2,}}")
_COMMAND_WITH_TEXT = re.compile(r"\\(?:text\w*|mathrm|mbox|begin|end|operatorname|mathbb)\s*\{[^{}]*\}")
_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_QUOTED = re.compile(r"^(?:\*\*|__|`|\"|')(.+)(?:\*\*|__|`|\"|')$", re.DOTALL)
_COMMANDS = {
    **{"**": "^", "<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne "},
    **{"π": "\\pi ", "∞": "\\infty ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ", "√": "\\sqrt "},
    **{"∅": "\\emptyset ", "θ": "\\theta "},
}
_FUNCTION_NAME = re.compile(r"(?<![\\a-zA-Z{])(pi|sin|cos|tan|cot|sec|csc|log|ln|exp)(?![a-zA-Z])")
_BETWEEN_NUMBERS = re.compile(r"\d[\s$]*\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}[\s$\\]*(?=\d)")
_OTHER_WORD = re.compile(r"\b(?!(?:and|or)\b)[^\W\d_]")
_TOWER = re.compile(r"(?<=\^)(\w+)\^(\w+|\{[^{}]*\})")
_LONGEST_PHRASE = 4  # words


def final_expression(completion: str) -> str | None:
    """Return the LaTeX of the final answer of a completion; `None` if it has none."""
    final = final_answer(completion)
    if final is None:
        return None
    if final.stated:
        return expression_in(final.text)
    for sentence in after_cue(final.text):
        if expression := expression_in(sentence):
            return expression
    return _at_the_end(final.text[-LONGEST_ANSWER:])


def expression_in(text: str) -> str | None:
    r"""Return the expression of a text that is an answer: `\frac{1}{2}` for `It is $\frac{1}{2}$.`

    `None` if the text has none, or denies it.
    """
    if len(text) > LONGEST_ANSWER:
        return None
    text = unwrapped(text)
    delimited = list(_DELIMITED.finditer(text))
    if delimited:
        return _joined(text, delimited)
    if _PROSE_WORD.search(_COMMAND_WITH_TEXT.sub("", text)) and not phrase(text):
        number = stated_number(text)
        return _bare_tail(text) if number is None else str(number)
    return text or None


def unwrapped(text: str) -> str:
    """Return an expression in one notation without quotes, bold type, `$` around all of it, and a final period."""
    text = one_notation(text).strip()
    while True:
        shorter = text.rstrip(".,;: \n").removesuffix("\\").strip() if not text.endswith("\\,") else text[:-2]
        if quoted := _QUOTED.match(shorter):
            shorter = quoted[1].strip()
        if (whole := _DELIMITED.fullmatch(shorter)) is not None:
            shorter = _content(whole)
        if shorter == text:
            return text
        text = shorter


def phrase(text: str) -> str | None:
    r"""Return a text answer such as `\text{east}`, `(C)` or `ellipse` as lower-case words; `None` for an expression."""
    words = _TEXT_COMMAND.sub(r" \1 ", text).replace("\\ ", " ").replace("~", " ").strip(" .()*`'\"$")
    is_phrase = re.fullmatch(r"[^\W\d_]{2,}(?:[ '-]+[^\W\d_]+)*", words) and len(words.split()) <= _LONGEST_PHRASE
    letter = re.fullmatch(r"[A-Z]", words) and ("\\text" in text or f"({words})" in text)
    return words.casefold() if is_phrase or letter else None


def has_words_between(expression: str) -> bool:
    r"""Return whether words other than `and`, `or` stand between two numbers: `3\text{ hours }20\text{ minutes}`.

    math-verify multiplies these numbers, or leaves out the second one.
    """
    return any(_OTHER_WORD.search(between) for between in _BETWEEN_NUMBERS.findall(expression))


def in_words(text: str) -> str:
    r"""Return a text of words and numbers in one form: `10:30 AM`, `18 to 20` or `3\text{ hours }20\text{ minutes}`."""
    return re.sub(r"[\s$]", "", without_latex(unwrapped(text)).casefold())


def is_sentence(text: str) -> bool:
    """Return whether a text has too many words to be a formula or a short text answer."""
    return len(_PROSE_WORD.findall(_COMMAND_WITH_TEXT.sub("", text))) > _LONGEST_PHRASE


def check_expression(answer: Any) -> str:
    """Return the expression that a reference states, without parsing it.

    Raises:
        ValueError: the reference is empty, a sentence, or longer than any formula.
    """
    text = reference_text(answer)
    expression = expression_in(text) or text
    is_one = plain_number(expression) is not None or phrase(expression) is not None
    if not is_one and (is_sentence(expression) or len(expression) > LONGEST_EXPRESSION):
        raise ValueError(f"the reference answer is not mathematics: {text[:80]!r}")
    return expression


def squeezed(text: str) -> str:
    """Return an expression without what does not change its meaning: equal text is an equal expression."""
    text = re.sub(r"\\(?:left|right|displaystyle|,|;|:|!)(?![a-zA-Z])|\s", "", text)
    return re.sub(r"\\[dt]frac", r"\\frac", text)


def as_latex(text: str) -> str:
    """Return an expression as LaTeX, if it is written as in a program (`x**2`, `sqrt(3)`, `<=`) or in Unicode."""
    for sign, command in _COMMANDS.items():
        text = text.replace(sign, command)
    text = _FUNCTION_NAME.sub(r"\\\1", text)
    while _TOWER.search(text):
        text = _TOWER.sub(r"{\1^\2}", text)
    return text


def _at_the_end(text: str) -> str | None:
    """Return the last expression of prose: the last formula between dollar signs, or a number or formula after it."""
    formulas = list(_DELIMITED.finditer(text))
    tail = text[formulas[-1].end() :] if formulas else text
    if formulas and not re.search(r"\d", without_latex(tail)):
        start = max(0, formulas[-1].start() - 80)
        return _joined(text[start:], list(_DELIMITED.finditer(text, start)), start)
    if not _PROSE_WORD.search(_COMMAND_WITH_TEXT.sub("", unwrapped(text))):
        return unwrapped(text)
    lines = tail.strip().splitlines()
    last_line = unwrapped(lines[-1]) if lines else ""
    if last_line and not _PROSE_WORD.search(_COMMAND_WITH_TEXT.sub("", last_line)):
        return last_line
    number = final_number(tail)
    return _bare_tail(last_line) if number is None else str(number)


def _bare_tail(text: str) -> str | None:
    """Return the formula without dollar signs at the end of a sentence: `x^2+1` in `so it is x^2+1`."""
    found = _BARE.search(text)
    if (
        found is None
        or not re.search(r"[\da-zA-Z\\]", found[0])
        or DENIED.search(text[: found.end()].removesuffix(found[0]))
    ):
        return None
    formula = found[0].strip(" ,;")
    is_number = plain_number(formula) is not None  # which `final_number` has refused: more than 18, 18 to 20
    return None if is_number else formula or None


def _joined(text: str, formulas: list[re.Match[str]], offset: int = 0) -> str | None:
    """Return the last of the formulas, together with those before it that only commas, `and` or `or` separate."""
    first = len(formulas) - 1
    while first and _JOINED.fullmatch(text[formulas[first - 1].end() - offset : formulas[first].start() - offset]):
        first -= 1
    if DENIED.search(text[: formulas[first].start() - offset]):
        return None
    return ", ".join(_content(formula).strip() for formula in formulas[first:])


def _content(delimited: re.Match[str]) -> str:
    return next(group for group in delimited.groups() if group is not None).strip()
