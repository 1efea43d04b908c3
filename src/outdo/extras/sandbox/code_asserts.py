"""Test the functions of a program by `assert` statements, as MBPP has them.

The expected side of an `assert` never enters the sandbox of the program, and the program never enters the sandbox in
which the `assert` is evaluated. Of `assert set(f([1, 2])) == {1, 2}` the program's sandbox gets `set(f([1, 2]))`, and
returns its value as a literal; a second sandbox, without the program, evaluates `assert VALUE == {1, 2}`. A program may
therefore do in its own process whatever it wants (replace `==`, walk up the stack, write results itself, exit with
status 0): the only way to pass is the right value.
"""

import ast
import builtins
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from outdo.extras.sandbox.code_tests import VERDICTS, ProgramSetting, Verdict, completed
from outdo.utils.text import one_line

_CALL = """
import json, os, sys, types
job = json.load(sys.stdin)
results = os.dup(1)
os.dup2(2, 1)
hasattr(sys, "set_int_max_str_digits") and sys.set_int_max_str_digits(0)

def literal(value):
    if value is None or value is True or value is False:
        return repr(value)
    if isinstance(value, float) and value in (1e999, -1e999):
        return "1e999" if value > 0 else "-1e999"
    for kind in (int, float, complex, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    if isinstance(value, str):
        return ascii(str.__str__(value))
    if isinstance(value, dict):
        return "{%s}" % "".join(f"{literal(key)}:{literal(value[key])}," for key in value)
    if isinstance(value, (set, frozenset)):
        return "{%s}" % "".join(literal(each) + "," for each in value) if value else "set()"
    if isinstance(value, tuple):
        return "(%s)" % "".join(literal(each) + "," for each in value)
    if isinstance(value, list):
        return "[%s]" % "".join(literal(each) + "," for each in value)
    raise TypeError("no literal")

module = sys.modules["program"] = types.ModuleType("program")
exec(compile(job["setup"], "setup", "exec"), vars(module))
exec(compile(job["program"], "program.py", "exec"), vars(module))
exec(compile(job["setup_of_program"], "setup", "exec"), vars(module))
for call in job["calls"]:
    try:
        line = literal(eval(call, vars(module)))
    except BaseException:
        line = ""
    os.write(results, line.encode() + b"\\n")
"""
"""Prints the value of each call as a literal of Python, or an empty line where there is none."""

_EVALUATE = """
import ast, json, os, sys
job = json.load(sys.stdin)
results = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
hasattr(sys, "set_int_max_str_digits") and sys.set_int_max_str_digits(0)

def value_of(literal):
    try:
        return [ast.literal_eval(literal)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []

namespace = {"__name__": "tests"}
exec(compile(job["setup"], "setup", "exec"), namespace)
print("ready", file=results)
values = [value_of(line) for line in job["values"]]
for test, needed in job["tests"]:
    if not all(values[index] for index in needed):
        print("fail", file=results)
        continue
    namespace["_values"] = {index: values[index][0] for index in needed}
    try:
        print("pass" if eval(test, namespace) else "fail", file=results)
    except Exception:
        print("fail", file=results)
"""
"""Prints `ready` after the setup, and the verdict of each test. Only what is of the data set is executed here; the
values are literals.
"""


@dataclass(frozen=True, slots=True)
class AssertTests:
    """Tests of functions: what is called, and what is evaluated with the values of these calls."""

    setup: str
    """Statements that precede the tests, such as imports."""
    calls: Sequence[str]
    """Expressions that call the program."""
    tests: Sequence[tuple[str, Sequence[int]]]
    """For each test an expression in which `_values[i]` stands for call number i, and the numbers of its calls."""
    setup_of_program: str = ""
    """Statements that need what the program defines, such as `root = Node(1)`: they follow the program."""

    def __len__(self) -> int:
        return len(self.tests)

    def verdicts(self, program: str, setting: ProgramSetting) -> Iterator[Verdict]:
        """Run the program once for all tests.

        Raises:
            ValueError: the setup cannot be executed, which says nothing about the program.
            SandboxUnavailableError: a run of the sandbox failed.
        """
        setup = {"setup": self.setup, "setup_of_program": self.setup_of_program}
        job = json.dumps({**setup, "program": program, "calls": self.calls})
        called = completed(setting.sandbox.run(_CALL, job, setting.limits))
        lines = called.stdout.splitlines()[: len(self.calls)]
        values = lines + [""] * (len(self.calls) - len(lines))
        job = json.dumps({"setup": self.setup, "values": values, "tests": self.tests})
        evaluated = completed(setting.sandbox.run(_EVALUATE, job, setting.limits))
        if not evaluated.stdout:
            reason = one_line(evaluated.stderr.strip().rpartition("\n")[2]) or f"ended by {evaluated.ending}"
            raise ValueError(f"test_imports and test_setup_code cannot be executed in the sandbox: {reason}")
        _, *printed = evaluated.stdout.split()
        for number, (_, needed) in enumerate(self.tests):
            if number < len(printed) and printed[number] == Verdict.passed:
                yield Verdict.passed
            else:
                missing = any(index >= len(lines) for index in needed)
                yield VERDICTS.get(called.ending, Verdict.failed) if missing else Verdict.failed


def assert_statements(source: str) -> list[ast.Assert]:
    """Return the statements of a text that holds nothing but `assert` statements.

    Raises:
        ValueError: it holds something else, or nothing.
    """
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the tests are no Python: {error}") from None
    for statement in statements:
        if not isinstance(statement, ast.Assert):
            raise ValueError(f"a test is not an assert statement: {ast.unparse(statement)[:80]!r}")
    if not statements:
        raise ValueError("there are no tests")
    return cast(list[ast.Assert], statements)


def parse_asserts(source: str, setup: str = "") -> AssertTests:
    """Separate what each `assert` calls from what it expects.

    The program is called by a name that neither Python nor the setup defines: `f(1)[0]`, `Solution().f(1)`. A function
    of Python that is applied to such a call alone belongs to it: `sorted(f(1))`. A statement of the setup that uses a
    name of the program, as some of MBPP do, is executed after the program, and only there.

    Raises:
        ValueError: a statement is no `assert`, or its call cannot be separated from what it expects.
    """
    statements = assert_statements(source)
    tree = ast.parse(setup)
    defined = _names_defined(tree)
    before, after = _divided(tree)
    of_program = _names_defined(after)
    calls: list[str] = []
    tests: list[tuple[str, list[int]]] = []
    modules: set[str] = set()
    for statement in statements:
        separated = _Separated(statement, defined, len(calls))
        if made := of_program & _names_used(separated.test):
            shown = ast.unparse(statement)[:80]
            raise ValueError(f"a test expects what the program makes, {min(made)} of the setup: {shown!r}")
        tests.append((ast.unparse(separated.test), [len(calls) + index for index in range(len(separated.calls))]))
        calls += separated.calls
        modules |= separated.modules
    imports = [f"import {module}" for module in sorted(modules)]
    return AssertTests("\n".join([*imports, ast.unparse(before)]), calls, tests, ast.unparse(after))


def _divided(setup: ast.Module) -> tuple[ast.Module, ast.Module]:
    """Return the statements of a setup that need nothing of the program, and all others, in their order."""
    defined = _names_defined(setup)
    foreign = set() if "*" in defined else _names_used(setup) - defined - {*dir(builtins), *sys.stdlib_module_names}
    size = -1
    while len(foreign) > size:  # what is made of the program's classes is the program's, too
        size = len(foreign)
        made = [statement for statement in setup.body if _names_used(statement) & foreign]
        foreign |= {name for statement in made for name in _names_defined(statement)}
    return ast.Module([statement for statement in setup.body if statement not in made], []), ast.Module(made, [])


def _names_used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _names_defined(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.arg():
                names.add(node.arg)
    return names


class _Separated(ast.NodeTransformer):
    """Replaces each call of the program in an `assert` by `_values[i]`.

    `test` is what remains, `calls` are the expressions that were replaced, and `modules` those of the standard library
    that either of them needs.
    """

    def __init__(self, statement: ast.Assert, defined: Collection[str], first: int) -> None:
        self.calls: list[str] = []
        self._first = first
        self._bound = _names_defined(statement)  # by comprehensions and lambdas
        self._known = {*dir(builtins), *defined} - {_shadowing_name(statement)}
        self._functions: set[str] = set()
        shown = ast.unparse(statement)[:80]
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        self.test = self.visit(statement.test)
        if not self.calls:
            raise ValueError(f"a test calls no function of the program: {shown!r}")
        undefined = names - self._known - self._bound - self._functions
        self.modules = undefined & sys.stdlib_module_names
        if unknown := undefined - self.modules:
            raise ValueError(
                f"a test uses {min(unknown)}, which test_imports and test_setup_code do not define: {shown!r}"
            )

    def visit(self, node: ast.AST) -> Any:
        function = self._function_called(node)
        if function is None:
            return self.generic_visit(node)
        if self._bound & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}:
            raise ValueError(f"a test calls the program inside of a loop: {ast.unparse(node)[:80]!r}")
        self._functions.add(function)
        self.calls.append(ast.unparse(node))
        return ast.parse(f"_values[{self._first + len(self.calls) - 1}]", mode="eval").body

    def _function_called(self, node: ast.AST) -> str | None:
        """Return the name by which an expression calls the program, or `None` if it is no such call."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name not in self._known:
                return name
            case ast.Call(func=ast.Name(), args=[argument], keywords=[]):
                return self._function_called(argument)
            case ast.Call(func=ast.Attribute(value=inner)) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
                return self._function_called(inner)
        return None


def _shadowing_name(statement: ast.Assert) -> str | None:
    """Return the name of a function of Python that the program itself defines, as in `assert sum(10, 15) == 6`."""
    match statement.test:
        case ast.Compare(left=ast.Call(func=ast.Name(id=name), args=arguments, keywords=[])):
            if all(not isinstance(inner, ast.Call | ast.Name) for part in arguments for inner in ast.walk(part)):
                return name
    return None
