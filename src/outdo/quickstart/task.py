"""The task of the first job: adding two three-digit numbers in writing, column by column from the right.

    347+285:  →  7+5=12,4+8+1=13,3+2+1=6#632

What stands after `#` is the answer, and all that the reward looks at. Sums stay below 1000: with answers of two
lengths a model this small goes on dropping the fourth digit.
"""

from collections.abc import Collection
from random import Random
from typing import NamedTuple

DIGITS = 3
HELD_OUT = 512  # problems that no training ever sees, the same for every seed
HELD_OUT_SEED = 632


class Problem(NamedTuple):
    """Two numbers to be added; each of them, and their sum, has `DIGITS` digits."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        """What the model reads: `347+285:`"""
        return f"{self.a}+{self.b}:"

    @property
    def answer(self) -> str:
        """What stands after `#` if all is right: `632`"""
        return str(self.a + self.b)


def working(problem: Problem, slip: tuple[int, int] | None = None) -> str:
    """The written addition: `7+5=12,4+8+1=13,3+2+1=6#632`.

    `slip = (column, digit)` puts a wrong last digit into one column's sum, counted from the right, and carries it on
    into the answer: what a careless pupil does.
    """
    carry, columns, digits = 0, [], ""
    for place in range(DIGITS):
        x, y = problem.a // 10**place % 10, problem.b // 10**place % 10
        total = x + y + carry
        if slip is not None and slip[0] == place:
            total = total // 10 * 10 + slip[1]
        columns.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry, digits = total // 10, f"{total % 10}{digits}"
    return f"{','.join(columns)}#{carry or ''}{digits}"


def problems(n: int, seed: int, *, exclude: Collection[Problem] = ()) -> list[Problem]:
    """`n` different problems in random order; neither they nor their mirror images (285+347) are in `exclude`."""
    random, smallest = Random(seed), 10 ** (DIGITS - 1)
    seen = {*exclude, *(Problem(b, a) for a, b in exclude)}
    found: list[Problem] = []
    while len(found) < n:
        problem = Problem(random.randrange(smallest, 10 * smallest), random.randrange(smallest, 10 * smallest))
        if sum(problem) < 10 * smallest and problem not in seen:
            seen.add(problem)
            found.append(problem)
    return found


def held_out() -> list[Problem]:
    """The problems by which a model is judged before and after; pass them to `problems` as `exclude`."""
    return problems(HELD_OUT, HELD_OUT_SEED)


def rows(chosen: Collection[Problem]) -> list[dict[str, str]]:
    """Questions as rows of a data file: what is asked, and the answer that is right."""
    return [{"prompt": problem.prompt, "answer": problem.answer} for problem in chosen]


def demonstrations(chosen: Collection[Problem], seed: int, *, careless: float = 0.0) -> list[dict[str, str]]:
    """Rows of question and worked answer to learn from. A share `careless` has one wrong digit in its working."""
    random = Random(seed)
    return [
        {
            "prompt": problem.prompt,
            "completion": working(problem, _slip(problem, random) if random.random() < careless else None),
        }
        for problem in chosen
    ]


def _slip(problem: Problem, random: Random) -> tuple[int, int]:
    """A column and a last digit that is wrong for it."""
    place = random.randrange(DIGITS)
    carry = (problem.a % 10**place + problem.b % 10**place) // 10**place
    right = (problem.a // 10**place + problem.b // 10**place + carry) % 10
    return place, random.choice([digit for digit in range(10) if digit != right])


def score(completion: str, answer: str) -> float:
    """The reward: 1 if what stands after the last `#` is the answer, else 0. The working is the model's own affair."""
    _, mark, result = completion.rpartition("#")
    return float(mark == "#" and result.strip() == answer)
