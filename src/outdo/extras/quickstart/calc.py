"""The tool of the task `calculator`. Worker processes import this file, which therefore imports little itself."""

import operator
import re

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calc(expression: str) -> str:
    """Compute a sum, a difference or a product of two whole numbers.

    Args:
        expression: Two numbers with +, - or * between them, such as "34*28".
    """
    found = re.fullmatch(r"([0-9]{1,9})([-+*])([0-9]{1,9})", expression)
    if found is None:
        raise ValueError('expected two numbers with +, - or * between them, such as "34*28"')
    return str(OPERATIONS[found[2]](int(found[1]), int(found[3])))
