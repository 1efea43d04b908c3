"""The hint that a teacher reads before each answer, in place of the question alone.

A hint is a text with places (`outdo.utils.hints`), filled from the row and from the group of the answer. An answer for
which a place cannot be filled, or which the model could not read after its hint, has none, and no teacher with one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outdo.types import Group, Prompt, Rollout, Sampled
from outdo.utils.hints import ANSWER, FEEDBACK, PROMPT, RIGHT, filled, in_a_row, phrases

Encode = Callable[[Prompt, Any], tuple[int, ...]]
"""Return the token ids of a prompt with another text: a string, or chat messages."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Writes the prompt with the hint of each rollout: `Rollout.teacher_prompt`."""

    hint: str
    encode: Encode
    decode: Callable[[Sequence[int]], str]  # token ids -> text, for `{feedback}`
    longest: int | None = None  # tokens that the model can read; None: any number

    def written(self, rollouts: Iterable[tuple[int, Sampled]]) -> Iterator[tuple[int, Sampled]]:
        """Yield the groups of each step with their hints, and the share of the answers that repeat the hint's text."""
        for step, sampled in rollouts:
            metrics = {**sampled.metrics, **self.metrics(sampled.groups)}
            yield step, replace(sampled, groups=tuple(map(self.of_group, sampled.groups)), metrics=metrics)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the share of the answers with three words in a row of the hint's text that the question does not have.

        What fills the places of the hint does not count: a right answer may well have words of the reference answer.
        Empty if the hint has no such words, or without answers.
        """
        of_hint = phrases(self.hint)
        repeats = [
            bool(in_a_row(rollout.text) & (of_hint - in_a_row(last_text(group.prompt.text))))
            for group in groups
            if not group.demonstrated
            for rollout in group.rollouts
        ]
        return {"teacher/repeats_hint_ratio": sum(repeats) / len(repeats)} if of_hint and repeats else {}

    def of_group(self, group: Group) -> Group:
        """Return the group with the hint of each rollout."""
        encoded: dict[str, tuple[int, ...]] = {}  # most rollouts of a group have the same hint

        def with_hint(rollout: Rollout) -> Rollout:
            values = {**self._of_row(group.prompt), **self._of_rollout(group, rollout)}
            text = filled(self.hint, values)
            if text is None:
                return rollout
            if text not in encoded:
                encoded[text] = self.encode(group.prompt, with_last_text(group.prompt.text, text))
            tokens = len(encoded[text]) + len(rollout.token_ids)
            too_long = self.longest is not None and tokens > self.longest
            return rollout if too_long else replace(rollout, teacher_prompt=encoded[text])

        return replace(group, rollouts=tuple(map(with_hint, group.rollouts)))

    def _of_row(self, prompt: Prompt) -> dict[str, Any]:
        return {**prompt.columns, ANSWER: prompt.answer, PROMPT: last_text(prompt.text)}

    def _of_rollout(self, group: Group, rollout: Rollout) -> dict[str, Any]:
        siblings = (other.text for other in group.rollouts if other is not rollout and other.right)
        inserted = [token for token, sampled in zip(rollout.token_ids, rollout.loss_mask, strict=True) if not sampled]
        return {RIGHT: next(siblings, None), FEEDBACK: self.decode(inserted) if inserted else None}


def last_text(text: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the question: the text itself, or that of the last message of the user."""
    if isinstance(text, str):
        return text
    return next((_content(message) for message in reversed(text) if message.get("role") == "user"), "")


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def with_last_text(text: str | Sequence[Mapping[str, Any]], new: str) -> str | list[Mapping[str, Any]]:
    """Return the prompt with another text in place of `last_text`."""
    if isinstance(text, str):
        return new
    at = max((number for number, message in enumerate(text) if message.get("role") == "user"), default=None)
    return [{**message, "content": new} if number == at else message for number, message in enumerate(text)]
