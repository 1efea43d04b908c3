r"""Write a bounded answer as an inequality: `18 or more`, `no fewer than 18` and `\ge 18` are `x \ge 18`."""

import re

from outdo.rewards.bounds import LATEX, relation_after, relation_before
from outdo.rewards.notation import one_notation, without_latex
from outdo.rewards.phrases import FUNCTIONS
from outdo.rewards.units import without_unit

MOST_VALUES = 12
"""Values of an answer that are looked at."""

_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]|\*\*|\\[,;:! ]|\\(?:left|right)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mbox)\s*\{([^{}]*)\}")
_VALUE = re.compile(r"(?<![\w.,\\{}(\[^])[-(]*(?:\\?[$€£])?(?:\d|\\(?:[dt]?frac|sqrt|pi)(?![a-zA-Z])|√|π)")
_END_OF_VALUE = re.compile(r"(?:(?<=[\d)}π])|(?<=\\pi))(?![\d})a-zA-Z])(?![.,]\d)")
_WORD = re.compile(rf"(?<![\\a-zA-Z])(?!(?:{FUNCTIONS})(?![a-zA-Z]))[a-zA-Z]{{2,}}")
_SIGN_AT_END = re.compile(r"(?:[<>≤≥≠±]=?|!=)[\s(]*\Z")
_ONE_VALUE = re.compile(r"(?:(?:\\[a-zA-Z]+|[^a-zA-Z:?!,;<>=≤≥])+)\Z")


def bounded(text: str) -> str | None:
    r"""Return the inequality for x of an answer that is bounded in words or by a sign alone: `x \ge 18`.

    Empty if it is bounded in a way that LaTeX does not say, such as `nearly 18`; `None` if nothing bounds it, or if it
    is an inequality already.
    """
    text = one_notation(text)
    text = _TEXT.sub(r" \1 ", _DELIMITER.sub(" ", text.replace("\\$", ""))).strip(" .\n")
    values = list(_VALUE.finditer(text))
    for value in values[-MOST_VALUES:]:
        before = without_latex(text[: value.start()])
        relation = relation_before(before)
        if relation and not _is_inequality(before):
            return _inequality(LATEX.get(relation), text[value.start() :])
    for end in list(_END_OF_VALUE.finditer(text))[-MOST_VALUES:]:
        after = without_latex(text[end.start() :])
        relation = relation_after(after)
        if relation and not re.match(r"\s*[<>≤≥±]", after):
            value_before = _ONE_VALUE.search(text[: end.start()])
            return _inequality(LATEX.get(relation), value_before[0] if value_before else "")
    return None


def _is_inequality(before: str) -> bool:
    """Return whether a sign at the end of a text has something to compare on its left: `x >`."""
    sign = _SIGN_AT_END.search(before)
    if sign is None:
        return False
    left = before[: sign.start()].split()
    return bool(left) and (len(left[-1]) == 1 or not left[-1].isalpha())


def _inequality(sign: str | None, value: str) -> str:
    value = without_unit(value.strip(" .,;\n")).strip(" .,;()") if sign else ""
    return f"x {sign} {value}" if value and not _WORD.search(value) and not re.search(r"[<>=≤≥,]", value) else ""
