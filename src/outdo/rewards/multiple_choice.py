r"""The reward `multiple_choice`: whether the final answer of a completion is the letter that the reference is.

A letter is `B`, `(B)`, `B.`, `b)`, `**B**`, `B: Paris`, `\text{(B)}`, `Option B`. In prose it is the one that is stated
last: after "the answer is" or "the correct option is", else as `outdo.rewards.mentions` reads what is said about
letters (`I choose B because A is too small`), else a line that is nothing but a letter, or a letter with its own
brackets: never a word such as `A`.
"""

import re
from typing import Any

from outdo.rewards.final_answer import LONGEST_ANSWER, after_cue, final_answer, reference_text
from outdo.rewards.mentions import SEVERAL, mentioned_letter, stated_in_mentions
from outdo.rewards.notation import without_latex

MAX_CUES = 8

_MARKS = re.compile(r"[*_`\"$]+|(?<!\w)'|'(?!\w)")
_NOUN = r"(?:\b(?:option|choice|answer|letter|alternative|statement)s?\b[\s:(-]*)"
_ALONE = re.compile(
    rf"\W{{0,3}}?\s*(?:the\s+)?(?:correct\s+)?{_NOUN}*[(\[{{]?\s*(?P<letter>[A-Za-z])\s*[)\]}}]?\s*[.!]?\s*", re.I
)
_FIRST = re.compile(
    rf"""\s*(?:the\s+)?(?:correct\s+)?(?i:{_NOUN})*(?:
    [(\[{{]\s*(?P<bracketed>[A-Za-z])\s*[)\]}}]
    |(?P<letter>[A-Z])(?=\s*(?:[.):,;(]|-\s|$|\b(?i:because|since|as|for|which|and|or|not|rather|instead|while)\b))
    |(?P<small>[a-z])(?=[.):]))""",
    re.VERBOSE,
)
_CHOICE = re.compile(
    r"""\b(?:(?:correct|right|best|final|selected|chosen|valid|my|only|true)\s+(?:\w+\s+)?
    (?:option|choice|letter|statement|alternative|selection)\s*(?:is|:|=|(?:would|must|should)\s+be)|ans(?=[.:]))[\s:.]*""",
    re.IGNORECASE | re.VERBOSE,
)
_WITH_TEXT = re.compile(
    r"(?:[(]?([A-Z])[).]|([B-Z])(?::|\s+-))\s+(?!(?:is|are|was|were|does|do|cannot|can't|isn't"
    r"|fails?|has|have|would|will|could|might|may)\b)\S[^\n]*"
)
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
    text = final.text[-LONGEST_ANSWER:]
    statements = [*after_cue(text), *_after_choice(text)]
    for statement in sorted(statements, key=text.rfind, reverse=True):
        if letter := _stated_letter(statement):
            return letter
    return _letter_in_prose(_plain(text))


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


def _after_choice(text: str) -> list[str]:
    """Return the lines after the last `MAX_CUES` "the correct option is"."""
    plain = list(_CHOICE.finditer(text))[-MAX_CUES:]
    return [text[cue.end() :].partition("\n")[0] for cue in plain]


def _stated_letter(text: str) -> str | None:
    plain = _plain(text[:LONGEST_ANSWER])
    if alone := _ALONE.fullmatch(plain):
        return alone["letter"].upper()
    first = _FIRST.match(plain)
    if first is None or _ANOTHER.match(plain, first.end()):
        return None
    return (first["bracketed"] or first["letter"] or first["small"]).upper()


def _letter_in_prose(text: str) -> str | None:
    """Return the letter that prose states; that of a line, or of brackets, where it states none."""
    stated = stated_in_mentions(text)
    if stated is not None:
        return None if stated == SEVERAL else stated
    lines = [line for line in text.split("\n") if line.strip()]
    alone = [match["letter"].upper() for line in lines if (match := _ALONE.fullmatch(line))]
    if alone and (len(set(alone)) == 1 or _ALONE.fullmatch(lines[-1])):
        return alone[-1]
    with_text = {match[1] or match[2] for line in lines if (match := _WITH_TEXT.fullmatch(line))}
    if len(with_text) == 1 and _WITH_TEXT.fullmatch(lines[0]):
        return with_text.pop()
    return mentioned_letter(text)
