"""The tool of `calculator.toml`, its questions, and conversations that show how the tool is called."""

import re
from random import Random
from typing import Any

from transformers.utils import get_json_schema

QUESTIONS = {
    "What is {a} times {b}?": "{a} * {b}",
    "What is {a} times {b}, plus {c}?": "{a} * {b} + {c}",
    "A box holds {a} pencils. How many pencils are in {b} boxes?": "{a} * {b}",
    "A shop has {a} apples, sells {b} and buys {c}. How many apples does it have then?": "{a} - {b} + {c}",
    "A ticket costs {a} dollars and a meal {b} dollars. What do {c} people pay for both?": "({a} + {b}) * {c}",
    "Ann has {a} stamps, and Tom has {b} more than Ann. How many do they have together?": "{a} + {a} + {b}",
}
NEW_QUESTIONS = {
    "What is {a} plus {b}, minus {c}?": "{a} + {b} - {c}",
    "A train has {a} cars with {b} seats each. {c} seats are taken. How many seats are free?": "{a} * {b} - {c}",
    "A farmer fills {a} baskets with {b} eggs each, and {c} more eggs. How many eggs are that?": "{a} * {b} + {c}",
}


def calc(expression: str) -> str:
    """Compute an expression.

    Args:
        expression: Numbers, +, -, * and parentheses.
    """
    if not re.fullmatch(r"[\d\s()+-]*(?:\*[\d\s()+-]+)*", expression) or len(expression) > 50:
        raise ValueError("only numbers, +, -, * and parentheses")
    return str(eval(expression, {"__builtins__": {}}))


def question(random: Random, numbers: list[int], questions: dict[str, str]) -> dict[str, Any]:
    """Return a question, the expression that answers it, and the answer."""
    text, expression = random.choice(list(questions.items()))
    a, b, c = sorted(random.sample(numbers, 3), reverse=True)
    expression = expression.format(a=a, b=b, c=c)
    return {"prompt": text.format(a=a, b=b, c=c), "expression": expression, "answer": calc(expression)}


def conversation(row: dict[str, Any]) -> dict[str, Any]:
    """Return a question, the call of the tool, its result and the answer, as `outdo sft` reads them."""
    call = {"type": "function", "function": {"name": "calc", "arguments": {"expression": row["expression"]}}}
    messages = [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calc", "content": row["answer"]},
        {"role": "assistant", "content": f"The answer is {row['answer']}."},
    ]
    return {"messages": messages, "tools": [get_json_schema(calc)]}
