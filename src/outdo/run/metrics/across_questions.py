"""Compare the answers to different questions with each other, and the words of an answer among themselves.

Answers that are alike whatever was asked, and words that come again and again, are what a policy writes that has found
out how to earn a reward without the question.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

from outdo.types import Group, Prompt, Rollout

BEGINNING = 3
"""Words that make the beginning of an answer."""

FEW = 2
"""Words of its own that an answer of little more than words of its question has at most."""

COUNTED = 16
"""Words of an answer that `distinct_words` counts: so it compares answers that grow longer or shorter."""

WORD = re.compile(r"\w+|[^\w\s]")


def across_question_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of the texts of some groups; the first two only where there are several questions:

    completions/identical_across_ratio   share of the answers that are an answer to another question too
    completions/same_beginning_ratio     share of the answers whose first three words begin one to another question too
    completions/repeated_ratio           share of the pairs of neighbouring words of an answer that it has had before;
                                         the mean over the answers
    completions/question_words_ratio     share of the answers with at most two different words that their question does
                                         not have

    Of an episode, the words are those of its last turn.
    """
    answered = [group for group in groups if group.rollouts]
    answers = [group.rollouts for group in answered]
    if not answers:
        return {}
    words = [[_words(rollout) for rollout in group] for group in answers]
    metrics = _of_each_answer([group.prompt for group in answered], words)
    if len(answers) > 1:
        beginnings = [[answer[:BEGINNING] for answer in group] for group in words]
        metrics |= {
            "completions/identical_across_ratio": _shared([[*map(_own_words, group)] for group in answers]),
            "completions/same_beginning_ratio": _shared(beginnings),
        }
    return metrics


def _of_each_answer(prompts: Sequence[Prompt], words: Sequence[Sequence[Sequence[str]]]) -> dict[str, float]:
    """Return the metrics of which each answer has a value by itself. `words` are those of each answer, by question."""
    repeated = [_repeated(answer) for group in words for answer in group]
    little = [
        _words_beside(asked, answer) <= FEW
        for asked, group in zip(map(_words_asked, prompts), words, strict=True)
        for answer in group
    ]
    return {
        "completions/repeated_ratio": sum(repeated) / len(repeated),
        "completions/question_words_ratio": sum(little) / len(little),
    }


def distinct_words(texts: Iterable[str]) -> float | None:
    """Return the share of different words among the first `COUNTED` words of each text; None if there is no word."""
    words = [word for text in texts for word in WORD.findall(text.lower())[:COUNTED]]
    return len(set(words)) / len(words) if words else None


def _words(rollout: Rollout) -> tuple[str, ...]:
    return tuple(WORD.findall(rollout.text.lower()))


def _words_asked(prompt: Prompt) -> set[str]:
    """Return the words of a question and of the messages before it."""
    texts = (
        [prompt.text] if isinstance(prompt.text, str) else [str(message.get("content", "")) for message in prompt.text]
    )
    return {word for text in texts for word in WORD.findall(text.lower())}


def _words_beside(asked: set[str], answer: Sequence[str]) -> int:
    """Return how many different words an answer has that are not among those of its question."""
    return sum(re.match(r"\w", word) is not None for word in set(answer) - asked)


def _own_words(rollout: Rollout) -> tuple[str, ...] | tuple[int, ...]:
    """Return the words of an answer; of an episode, the tokens that the policy sampled."""
    if all(rollout.loss_mask):
        return _words(rollout)
    return tuple(token for token, is_sampled in zip(rollout.token_ids, rollout.loss_mask, strict=True) if is_sampled)


def _shared(groups: Sequence[Sequence[Hashable]]) -> float:
    """Return the share of the members of groups that another group has too."""
    having: defaultdict[Hashable, set[int]] = defaultdict(set)
    for number, group in enumerate(groups):
        for answer in group:
            having[answer].add(number)
    return sum(len(having[answer]) > 1 for group in groups for answer in group) / sum(map(len, groups))


def _repeated(words: Sequence[str]) -> float:
    """Return the share of the pairs of neighbouring words that occurred before; 0 without a pair."""
    pairs = list(pairwise(words))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0
