"""The task `sums`: add two three-digit numbers in writing, column by column from the right.

    347+285:  →  7+5=12,4+8+1=13,3+2+1=6#632

The text after `#` is the answer, and the reward looks at nothing else. Sums are below 1000: with answers of two
lengths, a model this small keeps dropping the fourth digit.
"""

from collections.abc import Collection
from random import Random
from typing import NamedTuple

from outdo.extras.quickstart import settings
from outdo.extras.quickstart.model import ALPHABET
from outdo.extras.quickstart.task import SmallModel, Task, TaskData

DIGITS = 3
HELD_OUT = 512  # problems that are never trained on, the same for every seed
HELD_OUT_SEED = 632


class Addition(NamedTuple):
    """Two numbers to add; each of them, and their sum, has `DIGITS` digits."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        """The text that the model reads: `347+285:`"""
        return f"{self.a}+{self.b}:"

    @property
    def answer(self) -> str:
        """The right text after `#`: `632`"""
        return str(self.a + self.b)


def working(problem: Addition, forgotten: Collection[int] = ()) -> str:
    """Return the written addition: `7+5=12,4+8+1=13,3+2+1=6#632`.

    In the columns `forgotten` (1 for the tens, 2 for the hundreds) the carry is left out:
    `working(Problem(347, 285), {1})` is `7+5=12,4+8=12,3+2+1=6#622`.
    """
    carry, columns, digits = 0, [], ""
    for column in range(DIGITS):
        x, y = problem.a // 10**column % 10, problem.b // 10**column % 10
        carry = 0 if column in forgotten else carry
        total = x + y + carry
        columns.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry, digits = total // 10, f"{total % 10}{digits}"
    return f"{','.join(columns)}#{carry or ''}{digits}"


def problems(n: int, seed: int, *, exclude: Collection[Addition] = ()) -> list[Addition]:
    """Draw `n` different problems; neither they nor their mirror images (285+347) are in `exclude`."""
    random, smallest = Random(seed), 10 ** (DIGITS - 1)
    seen = {*exclude, *(Addition(b, a) for a, b in exclude)}
    drawn: list[Addition] = []
    while len(drawn) < n:
        problem = Addition(random.randrange(smallest, 10 * smallest), random.randrange(smallest, 10 * smallest))
        if sum(problem) < 10 * smallest and problem not in seen:
            seen.add(problem)
            drawn.append(problem)
    return drawn


def held_out() -> list[Addition]:
    """Return the problems of the evaluation before and after; pass them to `problems` as `exclude`."""
    return problems(HELD_OUT, HELD_OUT_SEED)


def rows(chosen: Collection[Addition]) -> list[dict[str, str]]:
    """Return rows of a data file: the prompt and the right answer."""
    return [{"prompt": problem.prompt, "answer": problem.answer} for problem in chosen]


def demonstrations(chosen: Collection[Addition], seed: int, *, careless: float = 0.0) -> list[dict[str, str]]:
    """Return rows of prompt and worked answer, each carry of which is forgotten with probability `careless`."""
    random = Random(seed)
    examples = []
    for problem in chosen:
        forgotten = [column for column in range(1, DIGITS) if random.random() < careless]
        examples.append({"prompt": problem.prompt, "completion": working(problem, forgotten)})
    return examples


def data(seed: int) -> TaskData:
    """Return the data of the task."""
    test = held_out()
    train = problems(settings.QUESTIONS, seed, exclude=test)
    return TaskData(
        demonstrations=demonstrations(train, seed, careless=settings.CARELESS),
        questions=rows(train),
        held_out=rows(test),
    )


TASK = Task(
    data=data,
    small=SmallModel(teacher=f"{settings.CARELESS:.0%} of the carries are forgotten", tokens=ALPHABET),
    recipe="""\
rewards = "exact"             # the text after `#` must be the answer
""",
    replicas=2,  # a small model is trained faster by two processes than by two threads
)
