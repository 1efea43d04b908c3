"""The task `programs`: write a program that does four operations in turn, as a pocket calculator does them.

    +3*2-4*5:  →  x=int(input());print(((x+3)*2-4)*5)

The program is run in a sandbox, with two inputs. The teacher mostly forgets the parentheses, so that his programs
multiply before they add.
"""

import operator
from collections.abc import Collection
from functools import reduce
from random import Random
from typing import NamedTuple

from outdo.extras.quickstart.task import Row, SmallModel, Task, TaskData

QUESTIONS = 3200
HELD_OUT = 96
HELD_OUT_SEED = 352
FORGOTTEN = 0.7  # chance that the teacher forgets a pair of parentheses
INPUTS = (58, -52)  # no operations before the last two give 0, for which forgotten parentheses would not show
BEGIN = "x=int(input());print("

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Operation(NamedTuple):
    """An operation and its second operand: `*2`."""

    sign: str
    number: int


Chain = tuple[Operation, ...]
"""Operations in the order in which they are done; the last one is a multiplication."""


def value(chain: Chain, x: int) -> int:
    """Return the result of a chain for the number `x`."""
    return reduce(lambda result, each: OPERATIONS[each.sign](result, each.number), chain, x)


def needed(chain: Chain) -> list[int]:
    """Return before which operations parentheses are needed: multiplications that follow an addition or subtraction."""
    return [place for place in range(1, len(chain)) if chain[place].sign == "*" and chain[place - 1].sign != "*"]


def program(chain: Chain, forgotten: Collection[int] = ()) -> str:
    """Return the program: `x=int(input());print((x+3)*2)`; without parentheses before the operations `forgotten`."""
    text = "x"
    for place, (sign, number) in enumerate(chain):
        text = f"({text})" if place in needed(chain) and place not in forgotten else text
        text += f"{sign}{number}"
    return f"{BEGIN}{text})"


def chains(n: int, seed: int, *, exclude: Collection[Chain] = ()) -> list[Chain]:
    """Draw `n` different chains that need parentheses, none of them in `exclude`."""
    random, seen, drawn = Random(seed), set(exclude), list[Chain]()
    while len(drawn) < n:
        signs = [*random.choices("+-*", k=3), "*"]
        chain = tuple(Operation(sign, random.randint(2, 9)) for sign in signs)
        if needed(chain) and chain not in seen:
            seen.add(chain)
            drawn.append(chain)
    return drawn


def question(chain: Chain) -> str:
    """Return the prompt: `+3*2-4*5:`."""
    return "".join(f"{sign}{number}" for sign, number in chain) + ":"


def rows(chosen: Collection[Chain]) -> list[Row]:
    """Return rows of a data file: the prompt, and inputs and outputs that test a program."""
    return [
        {
            "prompt": question(chain),
            "answer": {"inputs": [f"{x}\n" for x in INPUTS], "outputs": [f"{value(chain, x)}\n" for x in INPUTS]},
        }
        for chain in chosen
    ]


def demonstration(chain: Chain, random: Random, *, forgotten: float = FORGOTTEN) -> Row:
    """Return a prompt and a program of the teacher."""
    places = [place for place in needed(chain) if random.random() < forgotten]
    return {"prompt": question(chain), "completion": program(chain, places)}


def data(seed: int) -> TaskData:
    """Return the data of the task."""
    held_out = chains(HELD_OUT, HELD_OUT_SEED)
    train, random = chains(QUESTIONS, seed, exclude=held_out), Random(seed)
    return TaskData(
        demonstrations=[demonstration(chain, random) for chain in train], questions=rows(train), held_out=rows(held_out)
    )


TASK = Task(
    data=data,
    small=SmallModel(
        teacher=f"{FORGOTTEN:.0%} of the parentheses are forgotten",
        tokens=(BEGIN, *"0123456789+-*():x"),
        steps=200,
    ),
    recipe="""\
rewards = "code"              # the program must pass the tests of its row, in a sandbox
""",
    threads=1,
    steps=50,
    prompts=16,
    lr="2e-4",
    rows=HELD_OUT,
    samples=2,
)
