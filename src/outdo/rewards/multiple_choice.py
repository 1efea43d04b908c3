r"""The reward `multiple_choice`: whether the final answer of a completion is the letter that the reference is.

A letter is `B`, `(B)`, `B.`, `b)`, `**B**`, `B: Paris`, `\text{(B)}`, `Option B`. At the end of a text it is the letter
after "the answer is", a letter with its own brackets, or a line that is nothing but a letter: never a word such as `A`.
"""

import re
from typing import Any

from outdo.rewards.final_answer import LONGEST_ANSWER, after_cue, final_answer, reference_text
from outdo.rewards.last_number import DENIED
from outdo.rewards.notation import without_latex

_MARKS = re.compile(r"[*_`\"$]+|(?<!\w)'|'(?!\w)")
_NOUN = r"(?:\b(?:option|choice|answer|letter|alternative|statement)s?\b[\s:(]*)"
_ALONE = re.compile(
    rf"\s*(?:the\s+)?(?:correct\s+)?{_NOUN}*[(\[{{]?\s*(?P<letter>[A-Za-z])\s*[)\]}}]?\s*[.!]?\s*", re.I
)
_FIRST = re.compile(
    rf"""\s*(?:the\s+)?(?:correct\s+)?(?i:{_NOUN})*(?:
    [(\[{{]\s*(?P<bracketed>[A-Za-z])\s*[)\]}}]
    |(?P<letter>[A-Z])(?=\s*(?:[.):,;]|-\s|$|\b(?i:because|since|as|for|which|and|or|not)\b)))""",
    re.VERBOSE,
)
_WITH_TEXT = re.compile(r"(?:[(]?([A-Z])[).]|([B-Z]):)\s+\S[^\n]*\Z")
_BRACKETED = re.compile(r"(?<![\w\\])[(\[]([A-Z])[)\]](?!\w)")
_NAMED = re.compile(r"\b(?i:option|choice)\s+(?i:is\s+)?\(?([A-Z])\b(?!')")
_ENDING = re.compile(r"(?:\b(?i:is|be|choose|pick|select)|[:=])\s+([A-Z])\s*[.!]?\Z")
_ANOTHER = re.compile(r"[)\]}.\s]*(?:,|/|&|\b(?:or|and)\b)\s*(?:(?i:option|choice)\s+)?[(\[]?[A-Z][)\]]?(?![\w'])")


def multiple_choice(completion: str, answer: Any, prefill: str = "") -> bool:
    """Return True if the letter that is the final answer equals the reference's, in either case.

    Raises:
        ValueError: the reference is not one letter.
    """
    return final_letter(prefill + completion) == reference_letter(answer)


def final_letter(completion: str) -> str | None:
    """Return the letter, in upper case, that is the final answer of a completion; `None` if it is none, or several."""
    final = final_answer(completion)
    if final is None:
        return None
    if final.stated:
        return _stated_letter(final.text)
    after_cues = filter(None, map(_stated_letter, after_cue(final.text)))
    return next(after_cues, None) or _letter_at_the_end(_plain(final.text[-LONGEST_ANSWER:]))


def reference_letter(answer: Any) -> str:
    """Return the letter that a reference is, in upper case.

    Raises:
        ValueError: it is something else.
    """
    text = reference_text(answer)
    alone = _ALONE.fullmatch(_plain(text[:LONGEST_ANSWER]))
    if alone is None:
        raise ValueError(f"the reference answer is not one letter: {text[:80]!r}")
    return alone["letter"].upper()


def _plain(text: str) -> str:
    return _MARKS.sub("", without_latex(text)).strip()


def _stated_letter(text: str) -> str | None:
    plain = _plain(text[:LONGEST_ANSWER])
    if alone := _ALONE.fullmatch(plain):
        return alone["letter"].upper()
    first = _FIRST.match(plain)
    if first is None or _ANOTHER.match(plain, first.end()):
        return None
    return (first["bracketed"] or first["letter"]).upper()


def _letter_at_the_end(text: str) -> str | None:
    if alone := _ALONE.fullmatch(text.rpartition("\n")[2]):
        return alone["letter"].upper()
    found = sorted(
        (match for pattern in (_BRACKETED, _NAMED, _ENDING) for match in pattern.finditer(text)), key=re.Match.end
    )
    if not found and (with_text := _WITH_TEXT.match(text)):
        return with_text[1] or with_text[2]
    several = any(_ANOTHER.match(text, match.end()) for match in found[-2:])
    return None if several or not found or DENIED.search(text[: found[-1].start()]) else found[-1][1]
