r"""Read what prose says about the letters of options: which it chooses, which it rejects, which it only mentions.

A letter is chosen by what stands before it (`I choose B`, `so it is (B)`, `Option B`) or by what is said of it (`(B) is
correct`). One that something else is said of (`A is too small`, `option A ignores friction`), or that is excluded (`not
A`, `rule out A, C and D`), is not an answer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

SEVERAL = "several"
CONTEXT = 80
"""Characters before and after a letter that tell what is said about it."""

_LETTER = r"(?:(?i:option|choice|answer|letter|statement|alternative)s?\s+)?(?:[(\[][A-Z][)\]]|[A-Z](?![\w'])\)?)"
_LIST = re.compile(
    rf"(?<![\w\\'’.-])(?:(?i:both|either|neither)\s+)?{_LETTER}"
    rf"(?:\s*(?:,\s*(?:and|or|nor)\b|,|/|&|\b(?:and|or|nor)\b)\s*{_LETTER})*"
)
_ONE = re.compile(r"(?<![A-Za-z])[A-Z](?![A-Za-z])")
_NOUN = re.compile(r"(?:option|choice|answer|letter|alternative)s?\s", re.IGNORECASE)
_REJECTED_BEFORE = re.compile(
    r"""(?:\b(?:not|never|nor|neither|cannot|except|excluding|unlike|than|over|without|besides|instead\s+of|apart\s+from
    |(?:rul|eliminat|exclud|reject|discard|dismiss|cross)\w*(?:\s+out)?|(?:out|off|from)\s+of)|n't)
    (?:\s+(?:be|choose|pick|select|to|the|both|all|options?|choices?|answers?|of|just))*[\s:(]*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_CHOSEN_BEFORE = re.compile(
    r"""(?:\b(?:choos\w+|chose|pick\w*|select\w*|go(?:ing)?\s+(?:with|for)|answer(?:ed)?|leav(?:es|ing)|so|hence|thus
    |therefore|then|is|are|was|be|match\w*|corresponds?\s+to|mak(?:es|ing)|only|prefer|conclude|say)|'s|[:=]|->|=>)
    (?:\s+(?:it\s+is|it's|the|correct|answer|is|option|choice|letter|be|must|likely|probably|definitely|clearly))*
    [\s:,]*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_CONNECTED = re.compile(
    r"""\s*(?:\Z|[.,;:!?()\]\n-]|(?:because|since|as|for|which|and|or|not|over|while|but|so|rather|instead|if|given|due|here|above
    |below|whereas|though|although|the\s+(?:correct|right|best|only))\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_CALLED_RIGHT = re.compile(
    r"""\)?,?\s+(?:(?:is|are|was|were|must\s+be|has\s+to\s+be|seems|looks|would\s+be|should\s+be|remains)\s+
      (?:(?:clearly|indeed|therefore|thus|the|our|my|most|only|obviously|definitely|also|both|in\s+fact|a|hence|then|all)\s+)*
      (?:(?:best|most\s+likely|only|valid|final|single|right|correct)\s+)*
      (?:correct|right|true|answers?|choices?|options?|best|better|valid|one|match|fit|solution|accurate|left)\b
    |(?:is|does|are|do)\s*(?:[.!;]|\Z)
    |(?:holds|works|fits|matches|remains|follows|wins|applies|satisfies|hold|work|fit|match)\b(?!\s+n[o']))""",
    re.IGNORECASE | re.VERBOSE,
)
_CALLED_WRONG = re.compile(
    r"""\)?,?\s+(?:(?:is|are|was|were|seems?|looks?)\s+(?:(?:clearly|also|all|both|thus|therefore|obviously|simply)\s+)*
      (?:not|n't|wrong|incorrect|false|invalid|impossible|too)\b
    |(?:isn't|aren't|cannot|can't|does\s+not|doesn't|do\s+not|don't|fails?|must\s+be\s+(?:false|wrong))\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_OPTION_TEXT = re.compile(r"\s+[^a-z\s]")
_BRACKETED = re.compile(r"[(\[][A-Z][)\]]")


@dataclass(frozen=True, slots=True)
class _Mention:
    letters: list[str]
    chosen: bool
    rejected: bool
    bracketed: bool


def stated_in_mentions(text: str) -> str | None:
    """Return the letter that prose chooses last; `SEVERAL` if it chooses several; `None` if it chooses none."""
    mentions = list(_mentions(text))
    chosen = [index for index, mention in enumerate(mentions) if mention.chosen]
    if not chosen:
        return None
    letters = mentions[chosen[-1]].letters
    taken_back = any(mention.rejected and letters[0] in mention.letters for mention in mentions[chosen[-1] + 1 :])
    return SEVERAL if len(letters) > 1 or taken_back else letters[0]


def mentioned_letter(text: str) -> str | None:
    """Return the last letter in brackets of which nothing is said; `None` if there is none, or it is one of several."""
    bracketed = [mention for mention in _mentions(text) if mention.bracketed]
    if not bracketed or bracketed[-1].rejected or len(bracketed[-1].letters) > 1:
        return None
    return bracketed[-1].letters[0]


def _mentions(text: str) -> Iterator[_Mention]:
    for match in _LIST.finditer(text):
        before = text[max(0, match.start() - CONTEXT) : match.start()].rpartition("\n")[2]
        after = text[match.end() : match.end() + CONTEXT].partition("\n")[0]
        letters = list(dict.fromkeys(_ONE.findall(match[0])))
        is_rejected = _REJECTED_BEFORE.search(before) is not None or match[0].lower().startswith("neither")
        is_rejected = is_rejected or _CALLED_WRONG.match(after) is not None
        is_bracketed = _BRACKETED.search(match[0]) is not None
        is_object = _CONNECTED.match(after) is not None or (is_bracketed and _OPTION_TEXT.match(after) is not None)
        is_chosen = _CALLED_RIGHT.match(after) is not None or (is_object and _is_led_in(before, match[0], letters))
        yield _Mention(letters, is_chosen and not is_rejected, is_rejected, is_object and is_bracketed)


def _is_led_in(before: str, mention: str, letters: list[str]) -> bool:
    """Return whether what stands before letters chooses them; `so I` does not choose the letter I."""
    if _NOUN.match(mention):
        return True
    return _CHOSEN_BEFORE.search(before) is not None and (letters[0] != "I" or _BRACKETED.search(mention) is not None)
