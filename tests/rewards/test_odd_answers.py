"""Answers in unusual forms, each with the verdict of a person; the table in docs/rewards.md counts the errors on them.

The matchers were not changed for the lines of `odd_answers.jsonl` with `"unseen": true`. A matcher that errs on more of
them, or on other answers than those below, has become worse.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.rewards.last_number import last_number
from outdo.rewards.math import math
from outdo.rewards.multiple_choice import multiple_choice

ROOT = Path(__file__).parents[2]
ROWS = [json.loads(line) for line in (ROOT / "tests/rewards/odd_answers.jsonl").read_text("utf-8").splitlines()]
LETTERS = [row for row in ROWS if row["kind"] == "letters"]
MATHEMATICS = [row for row in ROWS if row["kind"] != "letters"]
TABLE = {
    name: [int(number) for number in re.findall(r"\d+", numbers)]
    for name, numbers in re.findall(
        r"^\| outdo `(\w+)` \|((?: \d+ \|){5})$", (ROOT / "docs/rewards.md").read_text("utf-8"), re.M
    )
}


def counts(matcher: Callable[[str, str], bool], rows: list[dict]) -> list[int]:
    """Return the numbers of a row of the table."""
    seen, unseen = [], []
    for row in rows:
        try:
            verdict = matcher(row["completion"], row["reference"])
        except ValueError:
            continue
        (unseen if row["unseen"] else seen).append((verdict, row["right"]))
    return [
        sum(verdict and not right for verdict, right in seen),
        sum(right and not verdict for verdict, right in seen),
        len(seen),
        sum(verdict != right for verdict, right in unseen),
        len(unseen),
    ]


@pytest.mark.parametrize(
    ("matcher", "rows"), [(last_number, MATHEMATICS), (math, MATHEMATICS), (multiple_choice, LETTERS)]
)
def test_the_documented_errors_on_odd_answers_are_counted(matcher: Callable[[str, str], bool], rows: list[dict]):
    assert counts(matcher, rows) == TABLE[matcher.__name__]


def test_there_are_odd_answers_of_both_kinds():
    assert len(ROWS) >= 240
    assert sum(row["right"] for row in ROWS) >= 100 <= sum(not row["right"] for row in ROWS)
    assert len({(row["reference"], row["completion"]) for row in ROWS}) == len(ROWS)
