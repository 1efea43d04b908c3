r"""Find the expression that is the final answer of a completion, as LaTeX text. `math` parses and compares it.

Nothing is parsed here, so this file needs no optional package and cannot run for ever.
"""

import re
from typing import Any

from outdo.rewards.bounds import CONTEXT, LATEX, relation_around, relation_before
from outdo.rewards.final_answer import (
    LONGEST_ANSWER,
    after_cue,
    final_answer,
    final_sentence,
    last_sentence,
    reference_text,
)
from outdo.rewards.last_number import final_number, plain_number, stated_number
from outdo.rewards.notation import without_latex
from outdo.rewards.number_context import DENIED
from outdo.rewards.phrases import DELIMITED, FUNCTIONS, content, phrase, text_at_end, text_in, text_reference, unwrapped
from outdo.rewards.relations import bounded
from outdo.rewards.units import without_unit

LONGEST_EXPRESSION = 1000
"""Characters. The longest answer of MATH (Hendrycks et al. 2021, arXiv 2103.03874) has fewer than 200."""

_JOINED = re.compile(r"\s*(?:,|;|\band\b|\bor\b|,\s*(?:and|or)\b)\s*")
_BARE = re.compile(rf"(?:(?:\\[a-zA-Z]+|(?<![a-zA-Z])(?:{FUNCTIONS}|[a-zA-Z])(?![a-zA-Z])|[^a-zA-Z:?!])+)\Z")
_PROSE_WORD = re.compile(rf"(?<![\\a-zA-Z\d])(?!(?:{FUNCTIONS})(?![a-zA-Z]))[a-zA-Z]{{2,}}")
_COMMAND_WITH_TEXT = re.compile(r"\\(?:text\w*|mathrm|mbox|begin|end|operatorname|mathbb)\s*\{[^{}]*\}")
_COMMANDS = {
    **{"**": "^", "<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne "},
    **{"π": "\\pi ", "∞": "\\infty ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ", "√": "\\sqrt "},
    **{"∅": "\\emptyset ", "θ": "\\theta ", "\\langle": "(", "\\rangle": ")"},
}
_FUNCTION_NAME = re.compile(r"(?<![\\a-zA-Z{])(pi|sin|cos|tan|cot|sec|csc|log|ln|exp)(?![a-zA-Z])")
_INEQUALITY = re.compile(r"[<>≤≥]|\\[lg](?:t|eq?|eqslant)(?![a-zA-Z])")
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


def answer_in_votes(completion: str) -> str | None:
    """Return the final answer of a completion as a number, LaTeX or text such as a time; `None` if it has none."""
    sentence = final_sentence(completion)
    if text := text_in(sentence):
        return text
    number = final_number(completion)
    return str(number) if number is not None else final_expression(completion) or text_at_end(sentence)


def expression_in(text: str) -> str | None:
    r"""Return the expression of a text that is an answer: `\frac{1}{2}` for `It is $\frac{1}{2}$.`

    `None` if the text has none, or denies it.
    """
    if len(text) > LONGEST_ANSWER:
        return None
    relation = bounded(text)
    if relation is not None:
        return relation or None
    text = unwrapped(text)
    delimited = list(DELIMITED.finditer(text))
    if delimited:
        return _joined(text, delimited)
    if _has_prose(text) and not phrase(text):
        text = without_unit(text)
    if _has_prose(text) and not phrase(text):
        number = stated_number(text)
        return _bare_tail(text) if number is None else str(number)
    return text or None


def is_sentence(text: str) -> bool:
    """Return whether a text has too many words to be a formula or a short text answer."""
    return len(_PROSE_WORD.findall(_COMMAND_WITH_TEXT.sub("", text))) > _LONGEST_PHRASE


def check_expression(answer: Any) -> str:
    """Return the expression that a reference states, without parsing it.

    Raises:
        ValueError: the reference is empty, a sentence, or longer than any formula.
    """
    return reference_expression(reference_text(answer))


def reference_expression(text: str) -> str:
    """Return the expression of the text of a reference; the text itself if it is text, such as a date.

    Raises:
        ValueError: as `check_expression`.
    """
    expression = unwrapped(text) if text_reference(text) is not None else expression_in(text) or text
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
    text = re.sub(r"√\s*(\d+)", r"\\sqrt{\1}", text)
    for sign, command in _COMMANDS.items():
        text = text.replace(sign, command)
    text = _FUNCTION_NAME.sub(r"\\\1", text)
    while _TOWER.search(text):
        text = _TOWER.sub(r"{\1^\2}", text)
    return text


def _has_prose(text: str) -> bool:
    return _PROSE_WORD.search(_COMMAND_WITH_TEXT.sub("", text)) is not None


def _at_the_end(text: str) -> str | None:
    """Return the last expression of prose: the last formula between dollar signs, or a number or formula after it."""
    relation = bounded(last_sentence(text))
    if relation is not None:
        return relation or None
    formulas = list(DELIMITED.finditer(text))
    tail = text[formulas[-1].end() :] if formulas else text
    if formulas and not re.search(r"\d", without_latex(tail)):
        start = max(0, formulas[-1].start() - 80)
        return _joined(text[start:], list(DELIMITED.finditer(text, start)), start)
    if not _has_prose(unwrapped(text)):
        return unwrapped(text)
    lines = tail.strip().splitlines()
    last_line = without_unit(unwrapped(lines[-1])) if lines else ""
    if last_line and not _has_prose(last_line):
        return last_line
    number = final_number(tail)
    return _bare_tail(last_line) if number is None else str(number)


def _bare_tail(text: str) -> str | None:
    """Return the formula without dollar signs at the end of a sentence: `x^2+1` in `so it is x^2+1`."""
    match = _BARE.search(text)
    if (
        match is None
        or not re.search(r"[\da-zA-Z\\]", match[0])
        or DENIED.search(before := text[: match.end()].removesuffix(match[0]))
        or relation_before(without_latex(before[-CONTEXT:]))
    ):
        return None
    formula = match[0].strip(" ,;")
    is_number = plain_number(formula) is not None  # which `final_number` has refused: more than 18, 18 to 20
    return None if is_number else formula or None


def _joined(text: str, formulas: list[re.Match[str]], offset: int = 0) -> str | None:
    """Return the last of the formulas, together with those before it that only commas, `and` or `or` separate."""
    first = len(formulas) - 1
    while first and _JOINED.fullmatch(text[formulas[first - 1].end() - offset : formulas[first].start() - offset]):
        first -= 1
    before, after = text[: formulas[first].start() - offset], text[formulas[-1].end() - offset :]
    if DENIED.search(before):
        return None
    parts = [content(formula).strip() for formula in formulas[first:]]
    relation = relation_around(without_latex(before[-CONTEXT:]), without_latex(after[:CONTEXT]))
    if relation is not None:
        return f"x {LATEX[relation]} {parts[0]}" if len(parts) == 1 and relation in LATEX else None
    separators = text[formulas[first].end() - offset : formulas[-1].start() - offset]
    is_union = re.search(r"\bor\b", separators) and all(_INEQUALITY.search(part) for part in parts)
    return (r" \text{ or } " if is_union else ", ").join(parts)
