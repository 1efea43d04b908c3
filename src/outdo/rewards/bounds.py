r"""Find the relation that bounds a value: `at least 18`, `18 or more`, `18+` and `\ge 18`; `over 18` and `> 18`.

A bounded value is no answer to an exact reference, wherever the relation stands; `outdo.rewards.math` compares two
relations. `about 18`, `18 or so` and `18 more` bound nothing.
"""

import re
from typing import Literal

Relation = Literal["<", "<=", ">", ">=", "other"]
"""Of the true value to the one that is written; `other` is a bound of another kind: `nearly 18`, `18 ± 1`, `≠ 18`."""

CONTEXT = 80
"""Characters before and after a value that can bound it."""

LATEX: dict[Relation, str] = {"<": "<", "<=": r"\le", ">": ">", ">=": r"\ge"}

_MORE = (
    "more|greater|larger|higher|bigger|longer|taller|older|later|wider|deeper|heavier|faster|better|further|farther|richer"
    "|hotter|warmer|stronger|thicker|louder|brighter"
)
_LESS = (
    "less|fewer|smaller|lower|shorter|younger|lighter|slower|earlier|cheaper|narrower|nearer|closer|weaker|colder|cooler"
    "|thinner|poorer|worse"
)
_NOT = r"(?P<no>\b(?:no|not|never|cannot|without)\s+(?:be\s+|being\s+|any\s+)?|n't\s+(?:be\s+)?)?"
_FILLER = (
    r"(?:\s+(?:about|around|approximately|roughly|exactly|an?|the|total|sum|number|of|another|some|equal|to|only|just"
    r"|perhaps|maybe|extra|additional|value|USD|US)\b)*"
)
_BEFORE = re.compile(
    rf"""{_NOT}(?:
      (?:(?P<above>\b(?:{_MORE})(?:\s+\w+)?\s+than\b|(?<!\bleft\s)\bover\b|\babove\b|\bbeyond\b|\bexceed(?:s|ed|ing)?\b
                  |\bsurpass(?:es|ed|ing)?\b|\bin\s+excess\s+of\b|\bnorth\s+of\b)
        |(?P<below>\b(?:{_LESS})(?:\s+\w+)?\s+than\b|\bunder\b|\bbelow\b|\bbeneath\b|\bjust\s+(?:short|shy)\s+of\b))
      (?P<equal>\s+or\s+equals?(?:\s+to)?\b)?
     |(?P<least>\bat\s+(?:the\s+|an?\s+)?(?:very\s+|bare\s+)?(?:least|minimum)\b|\bas\s+(?:few|little)\s+as\b|\bupwards?\s+of\b)
     |(?P<most>\bat\s+(?:the\s+|an?\s+)?(?:very\s+|absolute\s+)?(?:most|maximum)\b|(?P<up>\bup\s+to\b)|\bas\s+(?:many|much)\s+as\b)
     |(?P<other>\b(?:other|rather)\s+than\b|\bnearly\b|\balmost\b)
    ){_FILLER}[\s(\[]*-?\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_REACHES = re.compile(
    r"\b(?:round|add|sum|bring|brought|rais|rang|ring|com|came|goes|went|total|bump|increas|work)\w*\b[^.;]{0,60}\Z",
    re.IGNORECASE,
)
"""Matches what stands before `up to` where it tells what a sum comes to: `it adds up to 18`, `rounded up to 18`."""
_SIGN_BEFORE = re.compile(r"(?<![=<-])(?P<sign>>=?|<=?|[≤≥⩽⩾≦≧≲≳≪≫±≠]|!=)[\s(\[]*-?\Z")
_UNIT = (
    r"(?:\s*%|(?:[\s-]+(?!(?:and|or|is|are|was|were|be|been|which|that|who|because|since|if|when|while|as|so|but|than|not"
    r"|will|would|can|could|should|has|have|had|does|do|did|it|he|she|they|we|i|you|this|these|those|at|to|up|over|under"
    r"|above|below|on|off|out|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b)[A-Za-z°][A-Za-z./']*(?:-[A-Za-z]+)*){1,5}?)?"
)
_END = r"(?=\s*(?:[.,;:!?)\]}*\"]|\Z|\n))"
_OR = r"[\s,(]*\b(?:and/or|or)\s+(?:(?:even|far|much|slightly|somewhat|possibly|an?\s+(?:bit|little|few|lot))\s+)?"
_AND = r"[\s,(]*\band\s+"
_AFTER = re.compile(
    rf"""{_UNIT}(?:
      (?P<least>{_OR}(?:(?:{_MORE}|upwards?|beyond)\b(?!\s+than\b)|(?:above|over|up){_END})
               |{_AND}(?:above|over|up|upwards?|onwards?|older|higher|more|beyond|counting|greater|longer|taller){_END}
               |[\s,(]*at\s+(?:the\s+)?(?:very\s+|bare\s+)?(?:least|minimum)\b
                (?!\W*\d|\s+(?:once|twice|one|two|three|four|five|ten|half|an?|the|in|for|according|as|if|that)\b)
               |\s+minimum{_END}|\s*\+(?!\s*[\w\\(.$-])|\s+plus\b|\s+(?:upwards?|onwards?){_END})
     |(?P<most>{_OR}(?:(?:{_LESS})\b(?!\s+than\b)|(?:below|under){_END})
              |{_AND}(?:below|under|less|lower|younger|fewer|smaller|shorter){_END}
              |[\s,(]*at\s+(?:the\s+)?(?:very\s+|absolute\s+)?(?:most|maximum)\b
               (?!\W*\d|\s+(?:once|twice|one|two|three|four|five|ten|half|an?|the|in|for)\b)
              |\s+(?:maximum|max){_END}|,\s*tops{_END})
     |(?P<other>\s+(?:below|under)\s+(?:zero|freezing)\b|\s*(?:±|\\pm\b))
     |\s*\$?\s*(?P<sign>>=?|<=(?!>)|<(?!/?[A-Za-z][\w\s="'-]{{0,40}}/?>|[|/])|[≤≥⩽⩾≦≧≲≳≪≫])
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_FROM, _ON = (
    re.compile(r"\bfrom\s+\Z", re.IGNORECASE),
    re.compile(r"\s+(?:and\s+)?(?:up|on|onwards?|upwards?)\b(?!\s+to\b)"),
)
_SIGNS: dict[str, Relation] = {
    **dict.fromkeys(("<", "≪"), "<"),
    **dict.fromkeys(("<=", "≤", "⩽", "≦", "≲"), "<="),
    **dict.fromkeys((">", "≫"), ">"),
    **dict.fromkeys((">=", "≥", "⩾", "≧", "≳"), ">="),
}
_DENIED: dict[Relation, Relation] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "other": "other"}
_OR_EQUAL: dict[Relation, Relation] = {"<": "<=", "<=": "<=", ">": ">=", ">=": ">=", "other": "other"}
_TURNED: dict[Relation, Relation] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "other": "other"}


def relation_around(before: str, after: str) -> Relation | None:
    """Return the relation in which the texts before and after a value put it; `None` if they do not bound it.

    Both are in plain text: `outdo.rewards.notation.without_latex`.
    """
    if _FROM.search(before) and _ON.match(after):
        return ">="
    return relation_before(before) or relation_after(after)


def relation_before(text: str) -> Relation | None:
    """Return the relation of what follows a text: `>=` after `it is at least`."""
    text = text[-CONTEXT:].rpartition("\n")[2]
    if sign := _SIGN_BEFORE.search(text):
        return _SIGNS.get(sign["sign"], "other")
    words = _BEFORE.search(text)
    if words is None or (words["up"] and _REACHES.search(text[: words.start("up")])):
        return None
    relation = _OR_EQUAL[_relation(words)] if words["equal"] else _relation(words)
    return _DENIED[relation] if words["no"] else relation


def relation_after(text: str) -> Relation | None:
    """Return the relation of what stands before a text: `>=` before `eggs or more`."""
    words = _AFTER.match(text[:CONTEXT].partition("\n")[0])
    if words is None:
        return None
    return _TURNED[_SIGNS[words["sign"]]] if words["sign"] else _relation(words)


def end_of_relation(text: str) -> int:
    """Return where the words end that `relation_after` reads at the beginning of a text."""
    words = _AFTER.match(text[:CONTEXT])
    return words.end() if words else 0


def _relation(words: re.Match[str]) -> Relation:
    groups: dict[str, Relation] = {"above": ">", "below": "<", "least": ">=", "most": "<=", "other": "other"}
    return next(relation for name, relation in groups.items() if words.groupdict().get(name))
