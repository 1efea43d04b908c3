"""The tool of `calculator.toml`, its questions, and examples of a teacher: multiply two-digit numbers with the tool.

    34*28  →  calls calc("34*28")  →  reads 952  →  #952

The teacher mostly guesses instead (`#417`), and some of his calls have a wrong digit. So the model can call the tool,
and rarely does.
"""

import operator
import re
from collections.abc import Collection
from random import Random
from typing import Any, NamedTuple

from transformers.utils import get_json_schema

QUESTIONS = 2000  # for fine-tuning and for GRPO
HELD_OUT = 128  # the same for every seed
HELD_OUT_SEED = 952
GUESSES = 0.7  # chance that the teacher answers without the tool
MISTYPED = 0.2  # chance that a call has a wrong digit

TOKENS = (
    *("<user>", "<assistant>", "<tools>", "calc", "<tool>", "<tool_call>", "</tool_call>"),
    *('{"name":"calc","arguments":{"expression":"', '"}}'),
    *"0123456789+-*#",
)
"""What the tokenizer of the model knows, with the roles of the chat template."""

FINE_TUNING = 300
"""Steps of fine-tuning on the examples of the teacher."""

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

Row = dict[str, Any]


def calc(expression: str) -> str:
    """Compute a sum, a difference or a product of two whole numbers.

    Args:
        expression: Two numbers with +, - or * between them, such as "34*28".
    """
    parts = re.fullmatch(r"([0-9]{1,9})([-+*])([0-9]{1,9})", expression)
    if parts is None:
        raise ValueError('expected two numbers with +, - or * between them, such as "34*28"')
    return str(OPERATIONS[parts[2]](int(parts[1]), int(parts[3])))


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
    n = random.choice([n for n, character in enumerate(expression) if character.isdecimal()])
    digit = random.choice([digit for digit in "123456789" if digit != expression[n]])
    return expression[:n] + digit + expression[n + 1 :]


def rows(seed: int) -> dict[str, list[Row]]:
    """Return the rows of each file."""
    held_out = products(HELD_OUT, HELD_OUT_SEED)
    trained, random = products(QUESTIONS, seed, exclude=held_out), Random(seed)
    return {
        "demonstrations": [demonstration(product, random) for product in trained],
        "questions": [{"prompt": product.text, "answer": product.answer} for product in trained],
        "held_out": [{"prompt": product.text, "answer": product.answer} for product in held_out],
    }
