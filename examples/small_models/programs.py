"""The questions of `programs.toml`: write a program that does four operations in turn, as a pocket calculator does.

    +3*2-4*5:  →  x=int(input());print(((x+3)*2-4)*5)

The program is run in a sandbox, with two inputs. The teacher mostly forgets the parentheses, so that his programs
multiply before they add.
"""

import operator
from collections.abc import Collection
from functools import reduce
from random import Random
from typing import Any, NamedTuple

QUESTIONS = 3200
HELD_OUT = 96
HELD_OUT_SEED = 352
FORGOTTEN = 0.7  # chance that the teacher forgets a pair of parentheses
INPUTS = (58, -52)  # no operations before the last two give 0, for which forgotten parentheses would not show
BEGIN = "x=int(input());print("

TOKENS = (BEGIN, *"0123456789+-*():x")
"""What the tokenizer of the model knows."""

FINE_TUNING = 200
"""Steps of fine-tuning on the programs of the teacher."""

Row = dict[str, Any]

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Operation(NamedTuple):
    """An operation and its second operand: `*2`."""

    sign: str
    number: int


Chain = tuple[Operation, ...]
"""Operations in the order in which they are done; the last one is a multiplication."""


def value(chain: Chain, x: int) -> int:
    """Return the result of a chain for the number `x`."""
    return reduce(lambda result, operation: OPERATIONS[operation.sign](result, operation.number), chain, x)


def needed(chain: Chain) -> list[int]:
    """Return before which operations parentheses are needed: multiplications that follow an addition or subtraction."""
    return [n for n in range(1, len(chain)) if chain[n].sign == "*" and chain[n - 1].sign != "*"]


def program(chain: Chain, forgotten: Collection[int] = ()) -> str:
    """Return the program: `x=int(input());print((x+3)*2)`; without parentheses before the operations `forgotten`."""
    text = "x"
    for n, (sign, number) in enumerate(chain):
        text = f"({text})" if n in needed(chain) and n not in forgotten else text
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


def demonstration(chain: Chain, random: Random, *, forgotten: float = FORGOTTEN) -> Row:
    """Return a prompt and a program of the teacher."""
    left_out = [n for n in needed(chain) if random.random() < forgotten]
    return {"prompt": question(chain), "completion": program(chain, left_out)}


def rows(seed: int) -> dict[str, list[Row]]:
    """Return the rows of each file."""
    held_out = chains(HELD_OUT, HELD_OUT_SEED)
    trained, random = chains(QUESTIONS, seed, exclude=held_out), Random(seed)
    return {
        "demonstrations": [demonstration(chain, random) for chain in trained],
        "questions": [_row(chain) for chain in trained],
        "held_out": [_row(chain) for chain in held_out],
    }


def _row(chain: Chain) -> Row:
    """Return the prompt of a question, and inputs and outputs that test a program."""
    outputs = [f"{value(chain, x)}\n" for x in INPUTS]
    return {"prompt": question(chain), "answer": {"inputs": [f"{x}\n" for x in INPUTS], "outputs": outputs}}
