"""The held-out answers of the first and the last evaluation of a run, question by question."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.observability.page.encode import number_or_none, shortened
from outdo.observability.page.read import file_inside
from outdo.storage import held_out_answers
from outdo.utils.errors import RunFolderError

LARGEST_FILE = 64_000_000
"""The maximum size of a file of answers in bytes; a larger one is not read."""

MOST_SHOWN, LONGEST = 40, 1_500
"""How many changed answers of each kind a page shows, and how many characters of each text."""


def held_out_change(folder: Path) -> dict[str, Any] | None:
    """Compare the greedy answers of the first and the last evaluation; None if fewer than two were recorded.

        first, last       the steps after which the two evaluations were made; 0 is before the first step
        by                "right", or "reward" where right is not defined: then better and worse rewards are counted
        questions         how many answers are in both evaluations, with a verdict in both
        fixed, broken     how many became right, or wrong; `unchanged` the others, `right` how many are right now
        p                 the exact two-sided McNemar test: the probability of a difference between `fixed` and `broken`
                          at least as large if an answer changed in both directions with equal probability
        shown             of the fixed and the broken: question, reference, both answers, both rewards

    Answers of sampled evaluations are used where there are no greedy ones.
    """
    try:
        steps = held_out_answers.evaluated_steps(folder)
        if len(steps) < 2:
            return None
        before, after = (_answers(folder, step) for step in (steps[0], steps[-1]))
    except (OSError, RunFolderError):
        return None
    by = "right" if _any_verdict(before) or _any_verdict(after) else "reward"
    pairs = _pairs(before, after, by)
    fixed = [pair for pair in pairs if _change(pair, by) > 0]
    broken = [pair for pair in pairs if _change(pair, by) < 0]
    return {
        "first": steps[0],
        "last": steps[-1],
        "by": by,
        "questions": len(pairs),
        "fixed": len(fixed),
        "broken": len(broken),
        "unchanged": len(pairs) - len(fixed) - len(broken),
        "right": sum(after["right"] is True for _, after in pairs) if by == "right" else None,
        "p": mcnemar(len(fixed), len(broken)),
        "shown": [*_shown(fixed, "fixed", by), *_shown(broken, "broken", by)],
    }


def mcnemar(fixed: int, broken: int) -> float:
    """Return the p-value of McNemar's exact two-sided test: min(1, 2 P(X <= min(fixed, broken))), X ~ Bin(n, 1/2).

    n = fixed + broken are the pairs that changed (McNemar 1947, in its exact binomial form); 1 without any.
    """
    n, least = fixed + broken, min(fixed, broken)
    return min(1.0, 2.0 * math.fsum(math.comb(n, k) / 2**n for k in range(least + 1)))


def _answers(folder: Path, step: int) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return the greedy answers of an evaluation by question and sample, or else the sampled ones."""
    if file_inside(folder, held_out_answers.path_of(folder, step)).stat().st_size > LARGEST_FILE:
        return {}
    answers = held_out_answers.read(folder, step)
    kind = "greedy" if any(each["kind"] == "greedy" for each in answers) else "sampled"
    return {(str(each["id"]), int(each["sample"])): each for each in answers if each["kind"] == kind}


def _any_verdict(answers: Mapping[Any, Mapping[str, Any]]) -> bool:
    return any(each.get("right") is not None for each in answers.values())


def _pairs(
    before: Mapping[Any, Mapping[str, Any]], after: Mapping[Any, Mapping[str, Any]], by: str
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the two answers of each question that has a verdict, or a reward, in both evaluations."""
    pairs = [(before[key], after[key]) for key in before if key in after]
    return [(one, other) for one, other in pairs if _value(one, by) is not None and _value(other, by) is not None]


def _value(answer: Mapping[str, Any], by: str) -> float | None:
    return number_or_none(answer.get(by))


def _change(pair: Sequence[Mapping[str, Any]], by: str) -> float:
    before, after = (_value(each, by) or 0.0 for each in pair)
    return after - before


def _shown(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], change: str, by: str
) -> Iterable[dict[str, Any]]:
    """Yield the changed answers, those that changed most first."""
    for before, after in sorted(pairs, key=lambda pair: -abs(_change(pair, by)))[:MOST_SHOWN]:
        yield {
            "change": change,
            "id": shortened(str(after["id"]), 100),
            "prompt": shortened(str(after.get("prompt", "")), LONGEST),
            "answer": shortened(str(after.get("answer", "")), 300),
            "before": shortened(str(before["completion"]), LONGEST),
            "after": shortened(str(after["completion"]), LONGEST),
            "rewards": [number_or_none(before.get("reward")), number_or_none(after.get("reward"))],
        }
