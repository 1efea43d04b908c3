"""The matchers: the built-in rewards that compare the final answer with the reference; and the vote over answers.

This file loads no matcher's optional package. `math` compares in its worker process, here as in training.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from outdo.rewards.base import Reward
from outdo.rewards.combine import WeightedSum
from outdo.rewards.exact import final_text
from outdo.rewards.expressions import answer_in_votes, check_expression
from outdo.rewards.final_answer import reference_text
from outdo.rewards.last_number import final_number, reference_number
from outdo.rewards.multiple_choice import final_letter, reference_letter
from outdo.rewards.types import RewardInput, Status
from outdo.utils.extras import load_extra, missing_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """How a built-in reward reads the answers that it compares."""

    read: Callable[[str], str | None]
    """Return the final answer of a completion, as text that can be a reference; `None` if it has none."""
    check_reference: Callable[[Any], object]
    """Raise `ValueError` if no completion can match the reference."""
    reference_is_answer: bool = True
    """False if the reference is no answer, but what an answer is tested by."""
    by_value: bool = False
    """True if answers with different texts can be equal, as `x+1` and `1+x`: only the reward itself compares them."""


def matcher_called(name: str) -> Matcher:
    """Return the matcher of the built-in reward `name`.

    Raises:
        UserError: this installation of outdo does not have it.
    """
    matcher = MATCHERS[name]
    return matcher if isinstance(matcher, Matcher) else load_extra(matcher, f"rewards.{name}")


def matchers_in(spec: Any) -> list[str]:
    """Return the names of the matchers in an argument of `load_reward`: a name, a table with a name, or a list.

    One that this installation of outdo does not have is left out: whoever opens the reward says so.
    """
    if isinstance(spec, str):
        matcher = MATCHERS.get(spec)
        is_missing = isinstance(matcher, str) and missing_extra(matcher, spec) is not None
        return [spec] if matcher is not None and not is_missing else []
    if isinstance(spec, Mapping):
        return matchers_in(spec.get("name"))
    if isinstance(spec, Sequence):
        return [name for part in spec for name in matchers_in(part)]
    return []


def reference_checks(spec: Any) -> dict[str, Callable[[Any], object]]:
    """Return the `Matcher.check_reference` of the matchers in an argument of `load_reward`, by their names."""
    return {name: matcher_called(name).check_reference for name in matchers_in(spec)}


def matcher_of(reward: Reward) -> tuple[Matcher, Reward | None]:
    """Return how the answers that `reward` scores are read, and the matcher among its parts: the one that decides.

    Without a matcher, as with a function of a user, answers are read as numbers, and else as text.
    """
    named, deciding = {reward.name: reward}, None
    if isinstance(reward, WeightedSum):
        named, deciding = dict(zip(reward.names, reward.rewards, strict=True)), reward.right_rule.reward
    names = [name for name in (deciding, *named) if name and name in MATCHERS]
    return (matcher_called(names[0]), named[names[0]]) if names else (_NUMBER_OR_TEXT, None)


def majorities(reward: Reward, groups: Sequence[Sequence[str]]) -> list[int]:
    """Return for each group of completions the index of the first one with the most common answer.

    Each completion is given with its prefill (`RewardInput.answer_text`). Answers are those that the matcher in
    `reward` reads, and equal if it finds them equal. A completion without an answer has no vote.
    """
    matcher, part = matcher_of(reward)
    read = [[matcher.read(completion) for completion in group] for group in groups]
    pairs = [
        (number, *pair)
        for number, answers in enumerate(read)
        for pair in combinations(dict.fromkeys(answer for answer in answers if answer is not None), 2)
        if matcher.by_value and part is not None
    ]
    same: list[dict[str, str]] = [{} for _ in groups]  # from an answer to the first that is equal to it
    for (number, first, second), equal in zip(pairs, _compare(part, pairs), strict=True):
        if equal:
            same[number].setdefault(second, same[number].get(first, first))
    return [_most_common([same[number].get(str(a), a) for a in answers]) for number, answers in enumerate(read)]


def _compare(reward: Reward | None, pairs: Sequence[tuple[int, str, str]]) -> list[bool]:
    if reward is None or not pairs:
        return []
    outputs = reward([RewardInput(prompt="", completion=f"<answer>{a}</answer>", answer=b) for _, a, b in pairs])
    return [output.status is Status.ok and output.value == 1.0 for output in outputs]


def _most_common(answers: Sequence[str | None]) -> int:
    votes = Counter(answer for answer in answers if answer is not None)
    return answers.index(votes.most_common(1)[0][0]) if votes else 0


def _read_number(completion: str) -> str | None:
    number = final_number(completion)
    return None if number is None else str(number)


def _read_number_or_text(completion: str) -> str | None:
    return _read_number(completion) or final_text(completion)


MATCHERS: Mapping[str, Matcher | str] = {
    "exact": Matcher(read=final_text, check_reference=reference_text),
    "last_number": Matcher(read=_read_number, check_reference=reference_number),
    "math": Matcher(read=answer_in_votes, check_reference=check_expression, by_value=True),
    "code": "outdo.extras.sandbox.code:MATCHER",
    "multiple_choice": Matcher(read=final_letter, check_reference=reference_letter),
}
"""The matchers by their names in `outdo.rewards.BUILTIN`, or where they are, of rewards that can be left out."""

_NUMBER_OR_TEXT = Matcher(read=_read_number_or_text, check_reference=reference_text)
