"""The reward of `instructions.toml`: the share of the instructions in a question that an answer follows.

A question has a topic, which the answer has to name, and one to three instructions of `KINDS`. An answer of fewer than
five words earns nothing: "a chair" names its topic, is in lower case, and does without most words.
"""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

FEWEST_WORDS = 5
COMMON = ("a", "and", "in", "is", "it", "of", "the", "to")


class Kind(NamedTuple):
    """A kind of instruction."""

    text: str
    values: int | tuple[Any, ...]
    """What an instruction may ask for; a number stands for as many words of the data set."""
    holds: Callable[[str, Any], bool]
    aspects: str
    """What it decides of an answer. Two kinds that decide the same are not asked for together."""

    def drawn(self, random: Random, words: list[str]) -> Any:
        if self.values == 1:
            return random.choice(words)
        return random.sample(words, self.values) if isinstance(self.values, int) else random.choice(self.values)

    def filled(self, value: Any) -> str:
        return self.text.format(*(value if isinstance(value, list) else [value]))

    def goes_with(self, other: "Kind") -> bool:
        return set(self.aspects.split()).isdisjoint(other.aspects.split())


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9'-]+", text.lower())


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def at_most(text: str, count: int) -> bool:
    return 0 < len(words_of(text)) <= count


def at_least(text: str, count: int) -> bool:
    return len(words_of(text)) >= count


def are_sentences(text: str, count: int) -> bool:
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())
    return len(sentences) == count and text.strip().endswith((".", "!", "?"))


def are_lines(text: str, count: int) -> bool:
    return len(lines_of(text)) == count


def are_points(text: str, count: int) -> bool:
    return are_lines(text, count) and all(re.match(r"- \S", line) for line in lines_of(text))


def contains(text: str, word: str) -> bool:
    return word in words_of(text)


def avoids(text: str, word: str) -> bool:
    return bool(words_of(text)) and word not in words_of(text)


def begins_with(text: str, word: str) -> bool:
    return words_of(text)[:1] == [word]


def ends_with(text: str, word: str) -> bool:
    return words_of(text)[-1:] == [word]


def has_twice(text: str, word: str) -> bool:
    return words_of(text).count(word) == 2


def is_lower_case(text: str, _: None) -> bool:
    return text.islower()


def is_upper_case(text: str, _: None) -> bool:
    return text.isupper()


def is_quoted(text: str, _: None) -> bool:
    return re.fullmatch(r'"[^"]+"', text.strip()) is not None


def is_question(text: str, _: None) -> bool:
    return are_sentences(text, 1) and text.strip().endswith("?")


def has_keys(text: str, keys: list[str]) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and sorted(found) == sorted(keys)


LIST = 'Write a list of {} points, each on a line that begins with "- ".'
OBJECT = 'Answer with a JSON object that has the keys "{}" and "{}".'
KINDS = {
    "at_most": Kind("Use at most {} words.", (8, 12, 16), at_most, "length"),
    "at_least": Kind("Use at least {} words.", (16, 20, 24), at_least, "length"),
    "sentences": Kind("Write exactly {} sentences.", (2, 3), are_sentences, "shape length"),
    "lines": Kind("Write exactly {} lines.", (2, 3, 4), are_lines, "shape length start end"),
    "points": Kind(LIST, (2, 3, 4), are_points, "shape length start end"),
    "object": Kind(OBJECT, 2, has_keys, "shape length start end word case"),
    "contains": Kind('Use the word "{}".', 1, contains, "word"),
    "avoids": Kind('Do not use the word "{}".', COMMON, avoids, "common"),
    "first_word": Kind('Begin with the word "{}".', 1, begins_with, "start word"),
    "lower_case": Kind("Write in lower case only.", (None,), is_lower_case, "case"),
    "upper_case": Kind("Write in capital letters only.", (None,), is_upper_case, "case"),
    "quoted": Kind("Put the whole answer in double quotation marks.", (None,), is_quoted, "start end"),
    "last_word": Kind('End with the word "{}".', 1, ends_with, "end word"),
    "question": Kind("Write one question.", (None,), is_question, "shape end"),
    "twice": Kind('Use the word "{}" twice.', 1, has_twice, "word"),
}
NEW_KINDS = ("last_word", "question", "twice")
"""They occur in no question of `train.jsonl`, only in `kinds.jsonl`."""


def followed(completion: str, topic: str, instructions: list[list[Any]]) -> list[bool]:
    """Return whether an answer follows each instruction, and whether it names the topic; a short one does nothing."""
    words = words_of(completion)
    if len(words) < FEWEST_WORDS:
        return [False] * (len(instructions) + 1)
    return [KINDS[name].holds(completion, value) for name, value in instructions] + [
        topic in words or f"{topic}s" in words
    ]


def score(completion: str, topic: str, instructions: list[list[Any]]) -> float:
    """Return the share of the instructions that an answer follows; the topic is one of them."""
    found = followed(completion, topic, instructions)
    return sum(found) / len(found)
