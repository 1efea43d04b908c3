"""The reward `code`: programs of completions, tested in a sandbox, and programs that pretend to pass."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outdo.extras.sandbox import Ending, Limits, Outcome, SandboxUnavailableError, code
from outdo.extras.sandbox.base import DEFAULT_LIMITS
from outdo.extras.sandbox.code import last_program
from outdo.extras.sandbox.code_formats import check_tests, parse_tests
from outdo.extras.sandbox.code_tests import same_output
from outdo.extras.sandbox.local import UnsafeLocal
from outdo.rewards import Reward, RewardInput, Status, load_reward
from outdo.utils.errors import UserError

Sample = Callable[..., RewardInput]
ADD = {"inputs": ["1 2\n", "30 40\n"], "outputs": ["3\n", "70"]}
DOUBLE = ["assert double(2) == 4", "assert double([1]) == [1, 1]", "assert double('ab') == 'abab'"]


def fenced(program: str) -> str:
    return f"First I think.\n```python\n{program}\n```\nThat is it."


@pytest.fixture(scope="module")
def rewards() -> Iterator[Callable[..., Reward]]:
    """Rewards by their options; where no sandbox works, their programs run without one."""
    opened: dict[str, Reward] = {}

    def reward(**options: Any) -> Reward:
        key = repr(sorted(options.items()))
        if key not in opened:
            opened[key] = load_reward({"name": "code", "unsafe_local": True, **options}, workers=1)
        return opened[key]

    yield reward
    for each in opened.values():
        each.close()


@pytest.mark.parametrize(
    ("program", "tests", "passed"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", ADD, 2),
        ("print(sum(map(int, open(0).read().split())))", [{"input": "1 2", "output": "3", "testtype": "stdin"}], 1),
        ("print(3)", ADD, 1),
        ("print(3)\nraise SystemExit(1)", ADD, 0),
        ("while True: pass", ADD, 0),
        ("def double(x): return x * 2", DOUBLE, 3),
        ("def double(x): return x + x if x == 2 else None", DOUBLE, 1),
        ("def double(x):\n    if x == 2: raise SystemExit\n    return x * 2", DOUBLE, 2),
        ("def double(x):\n    while x == [1]: pass\n    return x * 2", DOUBLE, 1),
        ("import os\ndef double(x):\n    if x == [1]: os._exit(0)\n    return x * 2", DOUBLE, 1),
        ("def root(x): return x ** 0.5", ["assert math.isclose(root(2), 1.4142, rel_tol=1e-3)"], 1),
    ],
)
def test_the_share_of_passed_tests(
    program: str, tests: Any, passed: int, rewards: Callable[..., Reward], sample: Sample
):
    share = passed / len(parse_tests(tests))
    assert rewards(partial=True, seconds=1)([sample(fenced(program), tests)])[0].value == pytest.approx(share)
    verdict = rewards(seconds=1)([sample(fenced(program), tests)])[0]
    assert (verdict.status, verdict.value, verdict.right) == ("ok", float(share == 1), share == 1)


def test_imports_and_setup_of_a_row_precede_its_asserts(rewards: Callable[..., Reward], sample: Sample):
    row = {"test_imports": ["from math import isclose"], "test_setup_code": "class Node:\n    value = 2.0"}
    tests = ["assert isclose(half(Node()), 1.0)"]
    good = sample(fenced("def half(node): return node.value / 2"), tests, **row)
    assert rewards()([good])[0].value == 1.0
    assert rewards()([sample(fenced("def half(node): return 3"), tests, **row)])[0].value == 0.0


TREE = "root = Node(1)\r\nroot.left = Node(2)\r\nroot.left.left = Node(3)\r\n"  # as a row of MBPP
NODE = "class Node:\n    def __init__(self, data): self.data, self.left = data, None\n"
HEIGHT = "def height(node): return 0 if node is None else 1 + height(node.left)\n"


@pytest.mark.parametrize(
    ("program", "right"),
    [(NODE + HEIGHT, True), (NODE + "def height(node): return 2", False), (HEIGHT, False), ("no Python", False)],
)
def test_setup_may_use_a_class_of_the_program(
    program: str, right: bool, rewards: Callable[..., Reward], sample: Sample
):
    row = {"test_imports": ["from math import isclose"], "test_setup_code": f"import math\n{TREE}leaf = root.left.left"}
    tests = [
        "assert (height(root)) == 3",
        "assert isclose(height(root.left), 2)",
        "assert height(leaf) == math.pi // 3",
    ]
    output = rewards(seconds=2)([sample(fenced(program), tests, **row)])[0]
    assert (output.status, output.right) == ("ok", right)


def test_what_a_test_expects_may_not_come_from_the_program():
    with pytest.raises(ValueError, match="a test expects what the program makes, root of the setup"):
        parse_tests(["assert height(leaf) == root.data"], f"{TREE}leaf = root.left")
    names = "from helpers import *\nroot = Node(1)"  # a star may bring any name
    assert len(parse_tests(["assert f(1) == root.data"], names)) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"test_imports": "import math\nfrom math import isclose", "test_setup_code": None},
        {"test_imports": None, "test_setup_code": "from math import isclose\nprint('fail')"},
    ],
)
def test_imports_may_be_one_text_or_missing_and_setup_may_print(
    row: dict[str, Any], rewards: Callable[..., Reward], sample: Sample
):
    tests = ["assert isclose(half(2), 1.0)"]
    assert rewards()([sample(fenced("def half(x): return x / 2"), tests, **row)])[0].value == 1.0
    assert rewards()([sample(fenced("def half(x): return x"), tests, **row)])[0].value == 0.0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"test_imports": ["import numpy_of_nobody as np"]}, "ModuleNotFoundError: No module named 'numpy_of_nobody'"),
        ({"test_setup_code": "root = [][1]"}, "IndexError: list index out of range"),
        ({"test_setup_code": "while True: pass"}, "ended by timeout"),
    ],
)
def test_setup_that_cannot_be_executed_is_no_verdict_on_the_program(
    row: dict[str, Any], reason: str, rewards: Callable[..., Reward], sample: Sample
):
    for program in ("class Node: pass\ndef double(x): return x * 2", "no Python"):
        output = rewards(seconds=1)([sample(fenced(program), DOUBLE, **row)])[0]
        assert output.status is Status.failed
        assert f"test_imports and test_setup_code cannot be executed in the sandbox: {reason}" in output.reason


FORGERIES = {
    "exits with status 0": "import os\nos._exit(0)",
    "is equal to everything": """
class Equal(int):
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __repr__(self): return '4'
    __hash__ = int.__hash__
def double(x): return Equal(0)
""",
    "replaces the functions of Python": """
import builtins
builtins.eval = lambda *_: True
builtins.compile = lambda *_: ''
builtins.AssertionError = None
def double(x): return 0
""",
    "traces the interpreter": """
import sys
def trace(frame, event, argument):
    for name in frame.f_globals:
        if 'expected' in name or 'answer' in name: print(frame.f_globals[name])
    return trace
sys.settrace(trace)
def double(x): return 0
""",
    "walks up the stack": """
import sys, gc
def double(x):
    frame = sys._getframe()
    while frame:
        for found in (frame.f_locals, frame.f_globals):
            for name, value in list(found.items()):
                if isinstance(value, str) and 'assert' in value or name in ('expected', 'tests', 'answer'):
                    return eval(value.split('==')[1])
            if 'passed' in found: found['passed'] = True
        frame = frame.f_back
    return [each for each in gc.get_objects() if isinstance(each, str) and '==' in each]
""",
    "writes results itself": """
import os
def double(x): return 0
for descriptor in range(64):
    try:
        os.write(descriptor, b'pass\\npass\\npass\\n')
        os.write(descriptor, b'True\\nTrue\\nTrue\\n')
    except OSError: pass
""",
    "reads its tests": """
import sys
def double(x):
    texts = []
    for path in ('/dev/stdin', '/program.py', sys.argv[0]):
        try: texts.append(open(path).read())
        except OSError: pass
    return next((eval(each.split('==')[1]) for text in texts for each in text.split(',') if '==' in each), 0)
""",
    "writes an expression": """
import os
def double(x): return 0
for descriptor in range(64):
    try: os.write(descriptor, b"type('Equal', (), {'__eq__': lambda self, other: True})()\\n" * 3)
    except OSError: pass
""",
    "returns code": "def double(x): return __import__('os').system",
}


@pytest.mark.parametrize(
    ("forgery", "tests"),
    [*((name, DOUBLE) for name in FORGERIES), ("writes results itself", ADD), ("reads its tests", ADD)],
)
def test_a_program_cannot_forge_its_reward(forgery: str, tests: Any, rewards: Callable[..., Reward], sample: Sample):
    output = rewards(partial=True)([sample(fenced(FORGERIES[forgery]), tests)])[0]
    assert (output.status, output.value) == (Status.ok, 0.0)


class Recording:
    """Keeps everything that enters the sandbox of a program."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
        self.entered += [program, stdin]
        return UnsafeLocal().run(program, stdin, limits)


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ({"inputs": ["7"], "outputs": ["12345"]}, "12345"),
        (["assert f(7) == 12345", "assert abs(f(7) - 12345) < 0.5", "assert max(f(7), 12345) == 12345"], "12345"),
        (["assert math.isclose(f(7), 12345)", "assert sorted([f(7)]) == [12345]"], "12345"),
    ],
)
def test_no_expected_output_is_in_a_sandbox_with_the_program(
    tests: Any, expected: str, monkeypatch: pytest.MonkeyPatch
):
    recording = Recording()
    monkeypatch.setattr(code, "open_sandbox", lambda *_, **__: recording)
    program = "# of the model\ndef f(x): return 12000 + 345\nprint(f(7))"
    assert code.code(fenced(program), tests)
    runs = list(zip(recording.entered[::2], recording.entered[1::2], strict=True))
    with_program = [run for run in runs if "of the model" in "".join(run)]
    assert len(with_program) == 1
    assert expected not in "".join(with_program[0])


def test_a_sandbox_that_fails_is_no_reward(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, sample: Sample):
    class Broken:
        def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
            return Outcome(ending=Ending.infrastructure, stderr="no more namespaces")

    monkeypatch.setattr(code, "open_sandbox", lambda *_, **__: Broken())
    monkeypatch.setattr("outdo.rewards.signatures.RETRY_AFTER", (0.0, 0.0))
    for tests in (DOUBLE, ADD):
        with pytest.raises(SandboxUnavailableError, match="the sandbox failed: no more namespaces"):
            code.code(fenced("print(1)"), tests)
        output = load_reward(code.code)([sample(fenced("print(1)"), tests)])[0]
        assert output.status is Status.unavailable


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nfirst\n```\n```python\nlast\n```\n```\nits output\n```", "last\n"),
        ("print(1)", "print(1)"),
        ("<think>```python\nwrong\n```</think>```python\nright\n```", "right\n"),
        ("```python\nright\n```\n<think>```python\nwrong\n```", "right\n"),
        ("1. Thus:\n   ```python3\n   if True:\n       pass\n   ```", "if True:\n    pass\n"),
        ("```python\r\nif True:\r\n    pass\r\n```\r\nIt passes.", "if True:\n    pass\n"),
        ("~~~Python\na = '```'\n~~~", "a = '```'\n"),
        ("```bash\nls\n```", None),
        ("<think>print(1)", None),
    ],
)
def test_the_program_of_a_completion(completion: str, program: str | None):
    assert last_program(completion) == program


@pytest.mark.parametrize(
    ("printed", "expected", "tolerance", "same"),
    [
        ("1 2\n3\n\n", "1 2\n3", 0.0, True),
        ("1  2 \r\n3", "1 2\n3", 0.0, True),
        ("1\n2", "1 2", 0.0, False),
        ("0.50", "0.5", 0.0, False),
        ("0.50 a", "0.5 a", 1e-6, True),
        ("nan", "1", 0.5, False),
    ],
)
def test_outputs_are_compared_by_lines_and_words(printed: str, expected: str, tolerance: float, same: bool):
    assert same_output(printed, expected, tolerance) is same


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("x = 1", "a test is not an assert statement: 'x = 1'"),
        ("assert f(", "the tests are no Python"),
        (4, "it holds no tests: expected"),
        ({"inputs": ["1"], "outputs": []}, "its tests have 1 inputs and 0 outputs"),
        ({"inputs": [[1]], "outputs": [2]}, "an input or output is not a text"),
        ({"inputs": ["1"], "outputs": ["2"], "fn_name": "f"}, "write them as assert statements"),
    ],
)
def test_a_reference_without_usable_tests_is_refused(tests: Any, reason: str):
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        check_tests(tests)


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("assert 1 == 1", "calls no function of the program"),
        ("assert all(f(x) == y for x, y in [(1, 2)])", r"calls the program inside of a loop: 'f\(x\)'"),
        ("assert np.allclose(f(1), 2)", "uses np, which test_imports and test_setup_code do not define"),
        ("assert isclose(f(1), 2)", "uses f, which test_imports"),
    ],
)
def test_a_call_that_cannot_be_separated_from_what_is_expected_is_refused(test: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        parse_tests([test])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0.5}, "rewards.code.seconds: expected a whole number of 1 or more, found 0.5"),
        ({"sandbox": "bublewrap"}, 'sandbox: nothing is called "bublewrap"; did you mean bubblewrap'),
        ({"partia": True}, "rewards.code.partia: unknown option; did you mean partial?"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options: dict[str, Any], message: str):
    with pytest.raises(UserError) as refused:
        load_reward({"name": "code", "unsafe_local": True, **options})
    assert message in str(refused.value)
