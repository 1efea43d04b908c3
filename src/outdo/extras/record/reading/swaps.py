"""The words of a question that other questions do not have, and what these have in their place.

    Write a sentence about a bridge. Use the word "never".
    Write a sentence about the sea. Use the word "silver".

`bridge` can become `sea` and `never` can become `silver`; the other words are those of the template.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

Text = str | Sequence[Mapping[str, Any]]

WORD = re.compile(r"\w+(?:['’.,-]\w+)*|[^\w\s]")
"""A word, with what joins its parts (`don't`, `3.5`), or a single other character."""
MOST = 12
"""Words of one question that are replaced, those that fewest other questions have."""
COMMON = 0.75
"""The share of the other questions from which a word counts as one of the template, which is not replaced."""
TEMPLATE = 0.5
"""The share of the words of a question from which those of the template make one: only then have places a name."""
PHRASE = 3
"""Words that are replaced at once, at most, where another question has more or fewer of them."""
RECURS = 0.25
"""The share of the questions in which a place has to be, to be named."""
MOST_PLACES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Some text of a question, and what another question has in its place."""

    start: int  # the text is question[start:end]
    end: int
    other: str  # empty where no other question has a word at this place: the word is hidden
    place: str  # the words of the template around it, such as "about a _ Use"; empty without any

    def of(self, question: str) -> str:
        """Return the question with the other text in this place."""
        return question[: self.start] + self.other + question[self.end :]


@dataclass(frozen=True, slots=True)
class _Aligned:
    """Another question, and which of its words are in the place of which words of the question (`get_opcodes`)."""

    text: str
    words: Sequence[tuple[int, int]]  # start and end of each
    codes: Sequence[tuple[str, int, int, int, int]]

    @property
    def equal(self) -> int:
        return sum(end - start for tag, start, end, _, _ in self.codes if tag == "equal")

    def replaced(self) -> Iterator[tuple[int, int, str]]:
        """Yield ranges of words and what is in their place; word by word where both have as many."""
        for tag, start, end, other_start, other_end in self.codes:
            if tag != "replace":
                continue
            if end - start == other_end - other_start:
                for word in range(end - start):
                    yield start + word, start + word + 1, self._between(other_start + word, other_start + word + 1)
            elif max(end - start, other_end - other_start) <= PHRASE:
                yield start, end, self._between(other_start, other_end)

    def _between(self, start: int, end: int) -> str:
        return self.text[self.words[start][0] : self.words[end - 1][1]]


def swaps(question: str, others: Sequence[str]) -> list[Swap]:
    """Return what can be replaced in a question by what the other questions have in its place, in order.

    The question that has most words in common decides first, so that of two questions of a template only what differs
    is replaced. At most `MOST` words are.
    """
    words = _words(question)
    aligned = sorted(_align(question, others), key=lambda pair: -pair.equal)
    if not words or not aligned:
        return []
    shared = _shared(aligned, len(words))
    common = [count >= COMMON * len(aligned) for count in shared]
    signs = [not re.search(r"\w", question[start:end]) for start, end in words]
    fixed = [is_common or is_sign for is_common, is_sign in zip(common, signs, strict=True)]
    replacements = _replacements(aligned, fixed)
    rarest = sorted(replacements, key=lambda span: (min(shared[span[0] : span[1]]), span[0]))[:MOST]
    named = common if sum(common) >= TEMPLATE * len(words) else [False] * len(words)
    return _numbered(
        Swap(
            start=words[start][0],
            end=words[end - 1][1],
            other=other,
            place=_place(question, words, named, start, end),
        )
        for start, end, other in sorted(rarest)
    )


def named_places(questions: Sequence[str]) -> list[str]:
    """Return at most `MOST_PLACES` places, those that most questions have, of those that `RECURS` of them have."""
    counts = Counter(swap.place for question in questions for swap in swaps(question, questions) if swap.place)
    often = [words for words, count in counts.most_common() if count >= RECURS * len(questions)]
    return often[:MOST_PLACES]


def question_of(text: Text) -> str:
    """Return what is asked: the text, or the content of the last message of a user."""
    if isinstance(text, str):
        return text
    return next((str(message["content"]) for message in reversed(text) if message["role"] == "user"), "")


def with_question(text: Text, question: str) -> Text:
    """Return the text or the messages with another question (`question_of`) in its place."""
    if isinstance(text, str):
        return question
    last = max(index for index, message in enumerate(text) if message["role"] == "user")
    return [{**message, "content": question} if index == last else message for index, message in enumerate(text)]


def _shared(aligned: Sequence[_Aligned], count: int) -> list[int]:
    """Return how many of the other questions have each word of the question in its place. [count]"""
    shared = [0] * count
    for tag, start, end, _, _ in (code for pair in aligned for code in pair.codes):
        for word in range(start, end):
            shared[word] += tag == "equal"
    return shared


def _align(question: str, others: Sequence[str]) -> Iterator[_Aligned]:
    ours = WORD.findall(question)
    for other in dict.fromkeys(others):
        theirs = WORD.findall(other)
        if theirs != ours:
            yield _Aligned(other, _words(other), _opcodes(ours, theirs))


def _opcodes(ours: Sequence[str], theirs: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """Return which words are in the place of which: one by one where that makes at least `TEMPLATE` of them equal.

    Elsewhere the longest equal passages are found first. In `3 plus 5` and `5 plus 2` that would be the 5.
    """
    equal = [mine == other for mine, other in zip(ours, theirs, strict=False)]
    if len(ours) == len(theirs) and sum(equal) >= TEMPLATE * len(ours):
        tags = ("equal" if is_equal else "replace" for is_equal in equal)
        return [(tag, word, word + 1, word, word + 1) for word, tag in enumerate(tags)]
    return SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()


def _words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in WORD.finditer(text)]


def _replacements(aligned: Sequence[_Aligned], fixed: Sequence[bool]) -> list[tuple[int, int, str]]:
    """Return ranges of words that do not overlap, none of them `fixed`, and what takes their place.

    A word that no other question has a word for is hidden.
    """
    taken = list(fixed)
    replacements: list[tuple[int, int, str]] = []

    def take(start: int, end: int, other: str) -> None:
        if not any(taken[start:end]):
            replacements.append((start, end, other))
            taken[start:end] = [True] * (end - start)

    for pair in aligned:
        for start, end, other in pair.replaced():
            take(start, end, other)
    for tag, start, end, _, _ in (code for pair in aligned for code in pair.codes):
        if tag == "delete":
            for word in range(start, end):
                take(word, word + 1, "")
    return replacements


def _place(question: str, words: Sequence[tuple[int, int]], common: Sequence[bool], start: int, end: int) -> str:
    """Return the nearest words of the template, two before and one after, with `_` between; nothing without any."""

    def nearest(numbers: range, most: int) -> list[str]:
        texts = [question[slice(*words[number])] for number in numbers if common[number]]
        return [text for text in texts if re.fullmatch(r"\w+", text)][:most]

    before, after = nearest(range(start - 1, -1, -1), 2)[::-1], nearest(range(end, len(words)), 1)
    return " ".join([*before, "_", *after]) if before or after else ""


def _numbered(swaps: Iterable[Swap]) -> list[Swap]:
    """Return the swaps, of which no two have the same place: the second has `_2` in its name in the place of `_`."""
    seen: Counter[str] = Counter()
    numbered: list[Swap] = []
    for swap in swaps:
        seen[swap.place] += 1
        often = seen[swap.place]
        numbered.append(swap if often == 1 else replace(swap, place=swap.place.replace("_", f"_{often}", 1)))
    return numbered
