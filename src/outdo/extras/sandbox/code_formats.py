"""Read the tests of a question in the forms that data sets have them in."""

import json
from collections.abc import Iterator
from typing import Any

from outdo.extras.sandbox.code_asserts import assert_statements, parse_asserts
from outdo.extras.sandbox.code_tests import OutputTests, Tests

EXPECTED = (
    'it holds no tests: expected {"inputs": [...], "outputs": [...]}, a list of {"input": ..., "output": ...}, '
    "or assert statements"
)
CALLS_FUNCTION = "its tests call a function: write them as assert statements"


def parse_tests(answer: Any, setup: str = "") -> Tests:
    """Return the tests that a reference holds, directly or as JSON.

    Pairs of input and output are `{"inputs": [...], "outputs": [...]}` (APPS, TACO) or a list of
    `{"input": ..., "output": ...}` (LiveCodeBench). `assert` statements are a list of texts (MBPP), or one text; the
    statements of `setup` precede them.

    Raises:
        ValueError: it is none of these.
    """
    tests = _from_json(answer)
    source = _asserts(tests)
    if source is not None:
        return parse_asserts(source, setup)
    cases = [(_text(stdin), _text(expected)) for stdin, expected in _pairs(tests)]
    if not cases:
        raise ValueError("there are no tests")
    return OutputTests(cases)


def check_tests(answer: Any) -> None:
    """Raise `ValueError` if a reference holds no tests. Names that `assert` statements need are not looked up."""
    source = _asserts(_from_json(answer))
    if source is None:
        parse_tests(answer)
    else:
        assert_statements(source)


def _from_json(answer: Any) -> Any:
    if isinstance(answer, str) and answer.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(answer)
        except ValueError as error:
            raise ValueError(f"its tests are no JSON: {error}") from None
    return answer


def _asserts(tests: Any) -> str | None:
    """Return the source of tests that are text, or a list of texts."""
    if isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests):
        return "\n".join(tests)
    return tests if isinstance(tests, str) else None


def _pairs(tests: Any) -> Iterator[tuple[Any, Any]]:
    match tests:
        case {"fn_name": str()}:
            raise ValueError(CALLS_FUNCTION)
        case {"inputs": [*inputs], "outputs": [*outputs]}:
            if len(inputs) != len(outputs):
                raise ValueError(f"its tests have {len(inputs)} inputs and {len(outputs)} outputs")
            yield from zip(inputs, outputs, strict=True)
        case [*rows]:
            yield from map(_pair, rows)
        case _:
            raise ValueError(EXPECTED)


def _pair(test: Any) -> tuple[Any, Any]:
    match test:
        case {"testtype": kind} if kind != "stdin":
            raise ValueError(CALLS_FUNCTION)
        case {"input": given, "output": expected}:
            return given, expected
    raise ValueError(EXPECTED)


def _text(value: Any) -> str:
    """Return an input or an output; some rows of APPS hold a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise ValueError(f"an input or output is not a text: {value!r}"[:120])
    return value
