"""The task `calculator`: multiply two-digit numbers, with a tool.

    34*28  →  calls calc("34*28")  →  reads 952  →  #952

The teacher mostly guesses instead (`#417`), and some of his calls have a wrong digit. So the model can call the tool,
and rarely does.
"""

from collections.abc import Collection
from random import Random
from typing import NamedTuple

from transformers.utils import get_json_schema

from outdo.extras.quickstart.calc import calc
from outdo.extras.quickstart.model import CHAT_TOKENS
from outdo.extras.quickstart.task import Row, SmallModel, Task, TaskData

QUESTIONS = 2000  # for fine-tuning and for GRPO
HELD_OUT = 128  # the same for every seed
HELD_OUT_SEED = 952
GUESSES = 0.7  # chance that the teacher answers without the tool
MISTYPED = 0.2  # chance that a call has a wrong digit


class Product(NamedTuple):
    """Two numbers to multiply."""

    a: int
    b: int

    @property
    def text(self) -> str:
        """The question, and the right expression: `34*28`."""
        return f"{self.a}*{self.b}"

    @property
    def answer(self) -> str:
        """The right text after `#`: `952`."""
        return str(self.a * self.b)


def products(n: int, seed: int, *, exclude: Collection[Product] = ()) -> list[Product]:
    """Draw `n` different products, none of them in `exclude`."""
    random, seen, drawn = Random(seed), set(exclude), list[Product]()
    while len(drawn) < n:
        product = Product(random.randrange(10, 100), random.randrange(10, 100))
        if product not in seen:
            seen.add(product)
            drawn.append(product)
    return drawn


def demonstration(product: Product, random: Random, *, guesses: float = GUESSES, mistyped: float = MISTYPED) -> Row:
    """Return an example as messages: a guess, or a call of the tool, its result and the answer."""
    question = {"role": "user", "content": product.text}
    if random.random() < guesses:
        length = len(product.answer)
        guess = random.randrange(10 ** (length - 1), 10**length)
        return {"messages": [question, {"role": "assistant", "content": f"#{guess}"}], "tools": [get_json_schema(calc)]}
    expression = with_wrong_digit(product.text, random) if random.random() < mistyped else product.text
    result = calc(expression)
    call = {"type": "function", "function": {"name": "calc", "arguments": {"expression": expression}}}
    messages = [
        question,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calc", "content": result},
        {"role": "assistant", "content": f"#{result}"},
    ]
    return {"messages": messages, "tools": [get_json_schema(calc)]}


def with_wrong_digit(expression: str, random: Random) -> str:
    """Return an expression with another digit from 1 to 9 in a random place."""
    place = random.choice([place for place, character in enumerate(expression) if character.isdecimal()])
    digit = random.choice([digit for digit in "123456789" if digit != expression[place]])
    return expression[:place] + digit + expression[place + 1 :]


def rows(chosen: Collection[Product]) -> list[Row]:
    """Return rows of a data file: the prompt and the right answer."""
    return [{"prompt": product.text, "answer": product.answer} for product in chosen]


def data(seed: int) -> TaskData:
    """Return the data of the task."""
    held_out = products(HELD_OUT, HELD_OUT_SEED)
    train, random = products(QUESTIONS, seed, exclude=held_out), Random(seed)
    return TaskData(
        demonstrations=[demonstration(product, random) for product in train],
        questions=rows(train),
        held_out=rows(held_out),
    )


TASK = Task(
    data=data,
    small=SmallModel(
        teacher=f"{GUESSES:.0%} of the products are guessed, and {MISTYPED:.0%} of the calls have a wrong digit",
        tokens=(
            *CHAT_TOKENS,
            *("<tools>", "calc", "<tool>", "<tool_call>", "</tool_call>"),
            *('{"name":"calc","arguments":{"expression":"', '"}}'),
            *"0123456789+-*#",
        ),
        is_chat=True,
        steps=300,
    ),
    recipe="""\
rewards = "exact"             # the text after `#` in the last turn must be the answer
environment = {name = "tools", functions = "outdo.extras.quickstart.calc:calc", turns = 3}
""",
    threads=1,
    steps=100,
    prompts=16,
    lr="2e-4",
    rows=HELD_OUT,
    samples=2,
)
