r"""Write a set of numbers in one form: `x < -1 \text{ or } x > 3` as a union of intervals, `all real numbers` as ℝ."""

import re

from outdo.rewards.phrases import phrase

EMPTY, REALS = r"\emptyset", r"(-\infty,\infty)"

_PHRASES = {
    **dict.fromkeys(
        (
            *("no solution", "no solutions", "no real solution", "no real solutions", "empty set", "the empty set"),
            *(
                "there is no solution",
                "there are no solutions",
                "no solution exists",
                "no solutions exist",
                "no real roots",
            ),
        ),
        EMPTY,
    ),
    **dict.fromkeys(
        (
            "all real numbers",
            "all reals",
            "all real values",
            "every real number",
            "any real number",
            "the real numbers",
        ),
        REALS,
    ),
}
_SIGNS = {
    **{r"\emptyset": EMPTY, r"\varnothing": EMPTY, r"\{\}": EMPTY, "∅": EMPTY, "{}": EMPTY},
    **{r"\mathbb{R}": REALS, r"\mathbbR": REALS, r"\R": REALS, "ℝ": REALS},
}
_RELATION = re.compile(r"(<=|>=|<|>|≤|≥|\\[lg](?:t|eq?|eqslant)(?![a-zA-Z]))")
_OR = re.compile(
    r"\\text\w*\s*\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])|\\cup(?![a-zA-Z])|∪"
)
_INTERVAL = re.compile(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]")
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_VARIABLE = re.compile(r"[a-zA-Z]")


def one_set(expression: str) -> str | None:
    """Return a set of numbers as `EMPTY`, `REALS` or a union of intervals in LaTeX; `None` for others."""
    if named := _PHRASES.get(phrase(expression) or ""):
        return named
    bare = re.sub(r"\\(?:left|right)(?![a-zA-Z])|(?<!\\)\\[,;:! ]|\s", "", expression)
    bare = re.sub(r"\A[a-zA-Z]\\in(?![a-z])", "", bare)
    if bare in _SIGNS:
        return _SIGNS[bare]
    parts = _OR.split(expression)
    intervals = [_interval(part) for part in parts]
    if len(parts) > 1 and None not in intervals:
        return r" \cup ".join(filter(None, intervals))
    return REALS if bare == REALS else None


def _interval(text: str) -> str | None:
    """Return the interval of an inequality for one variable; an interval is returned as it is."""
    text = re.sub(r"\\(?:left|right|quad|qquad)(?![a-zA-Z])|(?<!\\)\\[,;:! ]|[$]", " ", text).strip(" ,")
    if _INTERVAL.fullmatch(text):
        return text
    parts = _RELATION.split(text)
    sides, signs = [side.strip() for side in parts[0::2]], [_sign(sign) for sign in parts[1::2]]
    variables = [index for index, side in enumerate(sides) if _VARIABLE.fullmatch(side)]
    bounds = [side for side in sides if not _VARIABLE.fullmatch(side)]
    if len(variables) != 1 or not all(bounds) or _LETTER.search(" ".join(bounds)):
        return None
    return _between(bounds, signs, variables[0])


def _between(bounds: list[str], signs: list[str], variable: int) -> str | None:
    """Return the interval of `x < 3`, `3 > x` or `1 < x <= 3`; `variable` is the place of x."""
    if len(bounds) == 1:
        return _half(signs[0] if variable == 0 else signs[0].translate(str.maketrans("<>", "><")), bounds[0])
    if len(bounds) != 2 or variable != 1 or not signs[0].startswith("<") or not signs[1].startswith("<"):
        return None
    left, right = "[" if "=" in signs[0] else "(", "]" if "=" in signs[1] else ")"
    return f"{left}{bounds[0]},{bounds[1]}{right}"


def _sign(written: str) -> str:
    equal = "=" if re.fullmatch(r"<=|>=|≤|≥|\\[lg]e.*", written) else ""
    return ("<" if written[0] in "<≤" or written.startswith(r"\l") else ">") + equal


def _half(sign: str, bound: str) -> str:
    if sign[0] == "<":
        return rf"(-\infty,{bound}{']' if '=' in sign else ')'}"
    return rf"{'[' if '=' in sign else '('}{bound},\infty)"
