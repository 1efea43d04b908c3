r"""Read a numeral that names its base: `101_2`, `52_{8}`, `1A_{16}`, `101_{\text{two}}`, `101 in base 2`.

It equals the same numeral in the same base: the numeral without its base, or its value in base ten, is another answer.
"""

import re

from outdo.rewards.final_answer import last_sentence
from outdo.rewards.notation import without_latex
from outdo.rewards.phrases import unwrapped

_NAMES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: str(base) for base, name in enumerate(_NAMES.split(" "), start=2)}
_BASE = rf"(?P<base>[1-9]\d?|{'|'.join(_BASES)})"
_DIGITS = r"(?P<digits>\d(?:[\d ]*[\dA-Z])?[\dA-F]*|[A-F]+[\dA-F]+)"
_INDEXED = re.compile(rf"[(]?\s*{_DIGITS}\s*[)]?\s*_\s*\{{?\s*[(]?{_BASE}[)]?\s*\}}?")
_IN_WORDS = re.compile(rf"{_DIGITS}\s*[,(]?\s*(?:in\s+)?base[\s-]*{_BASE}\s*[)]?", re.IGNORECASE)
_LEAD = re.compile(r"\A(?:[^\d=]*\b(?:is|are|equals|be|becomes)\b|[^=]*=)\s*:?\s*", re.IGNORECASE)


def numeral_in(text: str) -> tuple[str, int] | None:
    """Return the digits and the base of an answer that is one numeral with its base; `None` if it is something else."""
    plain = without_latex(unwrapped(last_sentence(text[-300:]))).replace("$", "").strip(" .*")
    for pattern in (_INDEXED, _IN_WORDS):
        for candidate in (plain, _LEAD.sub("", plain)):
            if match := pattern.fullmatch(candidate):
                base = int(_BASES.get(match["base"].lower(), match["base"]))
                if base <= 10 and not match["digits"].replace(" ", "").isdigit():
                    continue
                return match["digits"].replace(" ", "").upper().lstrip("0") or "0", base
    return None
