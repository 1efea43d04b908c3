r"""Find the final answer of a completion: the rule that all matchers share.

1. Thinking is never the answer: neither the text before the last `</think>`, nor an open `<think>` that does not end
   (`outdo.utils.thinking` lists its tags). A `<think>` that the prompt opens at its end belongs to the completion.
2. The final answer is what the last `<answer>...</answer>` holds.
3. Without this tag it is the text after the last `####`, the mark of GSM8K (Cobbe et al. 2021, arXiv 2110.14168). A
   Markdown heading such as `#### Step 2` is no mark.
4. Without a mark it is what the last `\boxed{...}` holds.
5. Without a box it is at the end of the text: what the last "the answer is ..." states, or what the text ends with.

The same rule applies again inside the tag and after the mark: `<answer>It is \boxed{18}</answer>`.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outdo.utils.thinking import without_thinking

ANSWER_MARK = "####"

LONGEST_ANSWER = 6000
"""Characters. A matcher reads no more of a stated answer, and no more of the end of a text."""

MAX_CUES = 8

_ANSWER_START = re.compile(r"<answer(?:\s[^<>]*)?>", re.IGNORECASE)
_ANSWER_END = re.compile(r"</answer\s*>", re.IGNORECASE)
_MARK = re.compile(r"(?<!#)####(?!#)")
_BOX = re.compile(r"\\f?boxed\b|\\fbox\b")
_CUE = re.compile(
    r"""\banswers?(?:[ \t]+(?:to|for|of|in)\b[^\n.!?:=$]{1,80}?)?      # the answer to the question
    [ \t]{0,4}[*_"']{0,4}[ \t]{0,4}
    (?:\b(?:is|are|equals|(?:should|must|would|will)[ ]be)\b(?:[ \t]{1,4}(?:therefore|thus|just|simply|equal[ ]to)\b)?
     |:|=|\n)
    (?:(?<!\n)[*_]{1,4})?[\s:=}]*                                     # of **Answer:**; a grid may begin with _ or *
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SENTENCE_END = re.compile(r"(?<!\\)(?<!approx)(?<!\bca)[.!?][\"')*_]*(?=\s|$)")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])(?<![ap]\.m\.) (?=[A-Z*$\\])")
_WORD = re.compile(r"[\s*_]*[^\W\d_]{2,}")
_NUMBERED_HEADING = re.compile(r"[\s*_]*\d+[.):]\s+[*_]*[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The final answer of a completion, as text."""

    text: str
    stated: bool
    """True if a tag, a mark or a box holds it: `text` is the answer. False if `text` is prose that ends with it."""


def final_answer(completion: str) -> FinalAnswer | None:
    """Return the final answer by the rule above; `None` if the completion has none, or an empty one.

    What the prompt has written of the answer stands before the completion: `final_answer(prefill + completion)`.
    """
    text = without_thinking(completion)
    tagged = _tagged(text)
    text = text if tagged is None else tagged
    marked = _after_mark(text)
    boxed = _boxed(text if marked is None else marked)
    stated = next((part for part in (boxed, marked, tagged) if part is not None), None)
    if stated is None:
        return FinalAnswer(text.strip(), stated=False) if text.strip() else None
    stated = next(after_cue(stated), stated).strip()
    return FinalAnswer(stated, stated=True) if stated else None


def after_cue(text: str) -> Iterator[str]:
    """Yield the sentences after the last `MAX_CUES` "the answer is" or "Answer:", the last one first."""
    for cue in reversed(deque(_CUE.finditer(text), maxlen=MAX_CUES)):
        rest = text[cue.end() : cue.end() + LONGEST_ANSWER]
        display = re.match(r"\\\[.*?\\\]|\$\$.*?\$\$", rest, re.DOTALL)
        line = display[0] if display else rest.partition("\n")[0]
        end = _SENTENCE_END.search(line)
        if sentence := _without_emphasis(line[: end.start() if end else None].strip()):
            yield sentence


def _without_emphasis(sentence: str) -> str:
    """Return a sentence without the bold type around all of it, or that begins or ends outside of it."""
    opening = re.match(r"[*_]{1,3}(?=[^\s*_])", sentence)
    if opening is None:
        closing = re.search(r"[*_]*\Z", sentence)
        assert closing is not None
        is_closed = closing[0] in sentence[: closing.start()]
        return sentence if closing[0] and is_closed else sentence.removesuffix(closing[0])
    inside = sentence[opening.end() :]
    return inside.rstrip("*_") if opening[0] not in inside.removesuffix(opening[0]) else sentence


def final_sentence(completion: str) -> str:
    """Return the text that states the final answer: of prose, the last "the answer is ...", or the last sentence."""
    final = final_answer(completion)
    if final is None or final.stated:
        return final.text if final else ""
    return next(after_cue(final.text), None) or last_sentence(final.text[-LONGEST_ANSWER:])


def last_sentence(text: str) -> str:
    """Return the last sentence of a text."""
    lines = text.strip().splitlines()
    return _BETWEEN_SENTENCES.split(lines[-1].strip())[-1] if lines else ""


def lines_after_cue(text: str) -> str:
    """Return all that follows the last "the answer is" or "Answer:", such as a grid; empty if nothing does."""
    last = deque(_CUE.finditer(text), maxlen=1)
    return text[last[0].end() :][:LONGEST_ANSWER].strip() if last else ""


def reference_text(answer: Any) -> str:
    """Return the answer that a reference states: by the same rule, or all of its text where nothing marks the answer.

    Raises:
        ValueError: the text is empty, or `answer` is None, a list or a table.
    """
    if isinstance(answer, list | tuple | Mapping):
        kind = "table" if isinstance(answer, Mapping) else "list"
        raise ValueError(f"the reference answer is a {kind}, expected text or a number: {str(answer)[:80]}")
    final = None if answer is None else final_answer(written_out(answer))
    if final is None:
        raise ValueError("the reference answer is empty")
    return final.text


def written_out(answer: Any) -> str:
    """Return a reference as a completion writes it: Parquet and pandas turn whole numbers with gaps into 2.0."""
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)


def _end_of_last(pattern: re.Pattern[str], text: str) -> int:
    return max((match.end() for match in pattern.finditer(text)), default=0)


def _tagged(text: str) -> str | None:
    start = _end_of_last(_ANSWER_START, text)
    if start == 0:
        return None
    end = _ANSWER_END.search(text, start)
    return text[start : end.start() if end else None]


def _after_mark(text: str) -> str | None:
    """Return the line after the last mark that is no heading."""
    for mark in reversed(list(_MARK.finditer(text))):
        line, _, below = text[mark.end() : mark.end() + LONGEST_ANSWER].strip().partition("\n")
        closes = (
            not line and text.find(ANSWER_MARK, text.rfind("\n", 0, mark.start()) + 1) < mark.start()
        )  # #### 18 ####
        if not closes and not (below.strip() and _is_heading(line)):
            return _MARK.sub("", line)
    return None


def _is_heading(line: str) -> bool:
    """Return whether a line that has text below it is a title: it begins with a word, or with a number and a title."""
    return not _CUE.search(line) and (_WORD.match(line) or _NUMBERED_HEADING.match(line)) is not None


def _boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` that is not empty; of an open one, the rest of its line."""
    for box in reversed(list(_BOX.finditer(text))):
        rest = text[box.end() : box.end() + LONGEST_ANSWER].lstrip()
        content = _in_braces(rest) if rest.startswith("{") else re.split(r"[\s$]", rest, maxsplit=1)[0]
        if content.strip():
            return content
    return None


def _in_braces(text: str) -> str:
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0 and brace[0] == "}":
            return text[1 : brace.start()]
    return text[1:].partition("\n")[0]
