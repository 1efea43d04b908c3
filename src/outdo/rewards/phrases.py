r"""Read answers that are text: words (`\text{east}`), words with numbers (`June 6`), dates, times, ratios, scores.

Text equals only the same text, in either case, however it is spaced. It is never computed: `2024-01-15` is not 2008,
`10:30` is not 1/3, and `Room 12` is not 12. `3/4` alone is a fraction, and words after a number are its unit.
"""

import re

from outdo.rewards.bounds import relation_after, relation_before
from outdo.rewards.notation import one_notation, without_latex
from outdo.rewards.number_context import DENIED

DELIMITED = re.compile(
    r"(?<!\\)\$\$(?P<a>.+?)(?<!\\)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)|(?<!\\)\$(?P<d>(?:\\\$|[^$\n])+?)(?<!\\)\$",
    re.DOTALL,
)
"""Matches a formula between dollar signs or their like."""

FUNCTIONS = "sqrt|pi|sin|cos|tan|cot|sec|csc|log|ln|exp|abs|arcsin|arccos|arctan|infinity|and|or"
"""Words that are a part of a formula."""

_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_QUOTED = re.compile(r"^(?:\*\*|__|`|\"|')(.+)(?:\*\*|__|`|\"|')$", re.DOTALL)
_BETWEEN_NUMBERS = re.compile(r"\d[\s$]*\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}[\s$\\]*(?=\d)")
_OTHER_WORD = re.compile(r"\b(?!(?:and|or)\b)[^\W\d_]")
_LONGEST_PHRASE = 4  # words
_LONGEST_TEXT = 1000  # characters
_MOST_WORDS = 20

_MONTH = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
_SHAPE = (
    r"\+?\(?\d+\)?(?:"
    r"(?:\s*:\s*\d+)+(?:\.\d+)?(?:\s?[ap]\.?m\b\.?)?"  # 10:30, 3:2
    r"|\s*(?:-\s*\(?\d+\)?\s*)*-\s*\d+|\s\d+-\d+"  # 2024-01-15, 3-0, (555) 123-4567
    r"|(?:/\d+){2,}|(?:\.\d+){2,})"  # 3/4/2023, 192.168.0.1
)
_ONLY_SHAPE = re.compile(_SHAPE, re.IGNORECASE)
_SHAPE_AT_END = re.compile(rf"(?<![\w.,:/-]){_SHAPE}(?=[\s.!*]*\Z)", re.IGNORECASE)
_WORDS_AND_NUMBERS = re.compile(r"[\w\s,.'#&:/()%$€£°-]*\d[\w\s,.'#&:/()%$€£°-]*")
_WORD = re.compile(rf"(?<![A-Za-z])(?!(?:{FUNCTIONS})(?![A-Za-z]))[A-Za-z]{{2,}}")
_BETWEEN_PLAIN = re.compile(r"\d\s*(?!(?:and|or)\s*\d)[A-Za-z]{2}[A-Za-z\s]*(?=\d)")
_DAY_FIRST = re.compile(rf"(\d{{1,2}})(?:of)?({_MONTH})(?![a-z])")
_DAY = re.compile(rf"\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?(?:{_MONTH})(?![a-z])", re.IGNORECASE)
_NO_LABEL = frozenset(
    """
    the an answer answers is are was were be equals equal it its that this there so thus hence therefore about
    approximately approx around roughly exactly precisely only just nearly almost total totals sum result
    results value cost costs price profit number amount of in for to from minus negative plus positive usd eur
    gbp rs us he she they we you has have had makes make earns gets got needs need pays paid spends spent can
    will would takes took with at by mod am sold bought made ate left owes weighs base final correct ans length
    width height area volume speed distance age weight perimeter probability
    """.split()  # noqa: SIM905
)
"""Words before a number that are no part of the answer."""

_ANOTHER_BEFORE = re.compile(
    r"\d|\b(?:or|and|nor|between|from|than|before|after|until|till|except|without|unlike|near|past|either|neither|both|by"
    r"|around|about)\s*\Z",
    re.IGNORECASE,
)
"""Matches what may not stand before a text that is an answer."""


def unwrapped(text: str) -> str:
    """Return an expression in one notation without quotes, bold type, `$` around all of it, and a final period."""
    text = one_notation(text).strip()
    while True:
        shorter = text.rstrip(".,;: \n").removesuffix("\\").strip() if not text.endswith("\\,") else text[:-2]
        if quoted := _QUOTED.match(shorter):
            shorter = quoted[1].strip()
        if (whole := DELIMITED.fullmatch(shorter)) is not None:
            shorter = content(whole)
        if shorter == text:
            return text
        text = shorter


def content(delimited: re.Match[str]) -> str:
    """Return the formula in a match of `DELIMITED`."""
    return next(group for group in delimited.groups() if group is not None).strip()


def phrase(text: str) -> str | None:
    r"""Return a text answer such as `\text{east}`, `(C)` or `ellipse` as lower-case words; `None` for an expression."""
    words = _TEXT_COMMAND.sub(r" \1 ", text).replace("\\ ", " ").replace("~", " ").strip(" .()*`'\"$")
    is_phrase = re.fullmatch(r"[^\W\d_]{2,}(?:[ '-]+[^\W\d_]+)*", words) and len(words.split()) <= _LONGEST_PHRASE
    letter = re.fullmatch(r"[A-Z]", words) and ("\\text" in text or f"({words})" in text)
    return " ".join(words.casefold().split()) if is_phrase or letter else None


def has_words_between(expression: str) -> bool:
    r"""Return whether words other than `and`, `or` stand between two numbers: `3\text{ hours }20\text{ minutes}`.

    math-verify multiplies these numbers, or leaves out the second one.
    """
    return any(_OTHER_WORD.search(between) for between in _BETWEEN_NUMBERS.findall(expression))


def in_words(text: str) -> str:
    r"""Return a text of words and numbers in one form: `10:30 AM`, `18 to 20` or `3\text{ hours }20\text{ minutes}`."""
    words = without_latex(unwrapped(text)).casefold()
    words = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", words)
    words = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", words)
    words = re.sub(r"(?<=\d)\s+(?=\d)", "_", words)
    words = re.sub(r"[\s$*`\"]", "", words).rstrip(".")
    if re.fullmatch(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}", words):
        words = re.sub(r"(?<!\d)0(?=\d(?!\d))", "", words)
    return _DAY_FIRST.sub(r"\2\1", words).removeprefix("0") if ":" in words else _DAY_FIRST.sub(r"\2\1", words)


def text_reference(text: str) -> str | None:
    """Return an answer in one form if it is text although it has numbers, such as a date; `None` if it is not."""
    plain = without_latex(unwrapped(text)).strip()
    if _ONLY_SHAPE.fullmatch(plain) or has_words_between(text):
        return in_words(text)
    if not _WORDS_AND_NUMBERS.fullmatch(plain):
        return None
    before, after = re.split(r"\d.*\d|\d", plain, maxsplit=1, flags=re.DOTALL)
    if relation_before(before) or relation_after(after):
        return None
    is_text = _is_label(before) or _BETWEEN_PLAIN.search(plain) or _DAY.match(plain)
    return in_words(text) if is_text else None


def _is_label(before: str) -> bool:
    """Return whether the words before a number belong to the answer: `Room` does, `The answer is` does not."""
    words = [word.casefold() for word in _WORD.findall(before)]
    return 0 < len(words) <= 3 and _NO_LABEL.isdisjoint(words) and not re.search(r"[:(]", before)


def equals_text(text: str, reference: str) -> bool:
    """Return whether a final answer is a text that `in_words` has written in one form, alone or after `It is on`."""
    if len(text) > _LONGEST_TEXT:
        return False
    words = without_latex(unwrapped(text)).split()
    for start in range(min(len(words), _MOST_WORDS)):
        before, form = " ".join(words[:start]), in_words(" ".join(words[start:]))
        if reference in _forms(form, reference):
            return not (_ANOTHER_BEFORE.search(before) or DENIED.search(f"{before} ") or relation_before(f"{before} "))
    return False


def text_in(text: str) -> str | None:
    """Return a final answer that is text with numbers, such as a time, in one notation; `None` if it is not text."""
    return unwrapped(text) if len(text) <= _LONGEST_TEXT and text_reference(text) is not None else None


def text_at_end(text: str) -> str | None:
    """Return the date, time, ratio or score with which a sentence ends; `None` if it ends with none."""
    shape = _SHAPE_AT_END.search(without_latex(text[-_LONGEST_TEXT:]))
    return shape[0].rstrip(".") if shape else None


def _forms(form: str, reference: str) -> list[str]:
    """Return what a text may be written as: a time without am or pm if the reference has none, `3 to 2` as 3:2."""
    if re.fullmatch(r"\d+(?::\d+)+", reference):
        return [form, re.sub(r"[ap]m\Z", "", form), re.sub(r"\A(\d+)to(\d+)\Z", r"\1:\2", form)]
    return [form]
