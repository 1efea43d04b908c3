"""The budgets of CONTRIBUTING.md, measured on the source."""

import ast
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
EXCEPTIONS = tomllib.loads((ROOT / "tests/budget_exceptions.toml").read_text(encoding="utf-8"))
MODULES = {
    ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
    for root, folder in ((SOURCE, "outdo"), (ROOT, "benchmarks/suite"))
    for path in sorted((root / folder).rglob("*.py"))
}
PAGE = {path.name: path for path in (SOURCE / "outdo/extras/page/static").glob("*.[jc]s*")}

LINES, COMPLEXITY, POSITIONAL, KEYWORD_ONLY, FILE, LIST, LOOP = 60, 12, 7, 12, 400, 600, 40

Function = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)


@cache
def trees() -> dict[str, ast.Module]:
    """All modules, parsed; not while tests are collected, which each process of `make test` does."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{name}:{node.lineno} {node.name}", node


def lines(node: Function) -> int:
    """Lines of a function without its docstring."""
    first = node.body[0]
    docstring = first if ast.get_docstring(node, clean=False) is not None else None
    return span(node) - (span(docstring) if docstring else 0)


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def complexity(node: Function) -> int:
    """One, one more for every branch, and one for each further operand of `and` and `or`."""
    inside = list(ast.walk(node))
    operands = sum(len(child.values) - 1 for child in inside if isinstance(child, ast.BoolOp))
    return 1 + sum(isinstance(child, BRANCHES) for child in inside) + operands


def positional(node: Function) -> int:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def packed(node: ast.Call) -> bool:
    """Whether a call such as `all([a, b])` hides the operands of an `and` from the count of branches."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    return name in ("all", "any") and isinstance(node.args[0], ast.List | ast.Tuple)


def targets(module: str, node: Import) -> Iterator[str]:
    """Full names a statement imports: of `from a import b` both `a` and `a.b`, as either may be the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)


def imported(module: str, node: Import) -> str:
    """The module that a statement loads: of `from a import b`, `a.b` if that is a module of outdo, else `a`."""
    names = list(targets(module, node))
    return max((name for name in names if name in MODULES), key=len, default=names[0])


def imports(tree: ast.AST) -> list[Import]:
    return [node for node in ast.walk(tree) if isinstance(node, Import)]


def hidden(tree: ast.Module) -> tuple[list[Import], list[Import]]:
    """Imports that run only inside of functions, and imports that only a type checker sees."""
    in_functions = {id(node): node for top in ast.walk(tree) if isinstance(top, Function) for node in imports(top)}
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    return list(in_functions.values()), [node for check in checks for node in imports(check)]


def unused(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    names = list(names)
    return [pattern for pattern in patterns if not matching(names, pattern)]


def test_every_exception_has_a_reason():
    reasons = [reason for table in EXCEPTIONS.values() for reason in table.values()]
    assert all(len(reason.split()) >= 3 for reason in reasons)


@pytest.mark.parametrize(
    ("measure", "budget"),
    [(lines, LINES), (complexity, COMPLEXITY), (positional, POSITIONAL)],
    ids=["lines", "complexity", "positional parameters"],
)
def test_functions_stay_within_their_budget(measure, budget):
    over = [f"{where}: {measure(node)}" for where, node in functions() if measure(node) > budget]
    assert not over, f"more than {budget}"


def test_functions_have_few_keyword_only_parameters():
    allowed = EXCEPTIONS["keyword_only_parameters"]
    over = {
        f"{module}.{node.name}": len(node.args.kwonlyargs)
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Function) and len(node.args.kwonlyargs) > KEYWORD_ONLY
    }
    assert not {name: count for name, count in over.items() if name not in allowed}, f"more than {KEYWORD_ONLY}"
    assert not unused(allowed, over), "an exception that is no longer needed"


def test_no_call_hides_branches_from_the_count():
    calls = [(name, node) for name, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [f"{name}:{node.lineno} {ast.unparse(node)}" for name, node in calls if packed(node)]


def test_files_stay_within_their_budget():
    lists = EXCEPTIONS["lists"]
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in (MODULES | PAGE).items()}
    over = {name: size for name, size in sizes.items() if size > FILE}
    assert not {name: size for name, size in over.items() if name not in lists}, f"more than {FILE} lines"
    assert not {name: size for name, size in over.items() if size > LIST}, f"more than {LIST} lines"
    assert not unused(lists, MODULES), "an exception that is no longer needed"


def test_lines_of_the_page_are_as_short_as_ours():
    lines = [(name, line) for name, path in PAGE.items() for line in path.read_text(encoding="utf-8").splitlines()]
    assert not [(name, line) for name, line in lines if len(line) > 120]


def test_the_training_loop_is_short():
    loops = [node for where, node in functions() if where.startswith("outdo.loop:") and node.name == "train"]
    assert len(loops) == 1
    assert span(loops[0]) <= LOOP


def test_no_module_imports_itself_in_a_circle():
    graph = {}
    for module, tree in trees().items():
        seen_by_types = {id(node) for node in hidden(tree)[1]}
        run = [node for node in imports(tree) if id(node) not in seen_by_types]
        graph[module] = {name for node in run for name in targets(module, node) if name in MODULES} - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_imports_are_at_the_top_except_where_a_reason_is_written_down():
    allowed = EXCEPTIONS["deferred_imports"]
    found = {f"{module}: {imported(module, node)}" for module, tree in trees().items() for node in hidden(tree)[0]}
    assert not [where for where in found if not any(fnmatchcase(where, pattern) for pattern in allowed)]
    assert not unused(allowed, found), "an exception that is no longer needed"


def test_no_two_public_classes_share_a_name():
    modules: dict[str, list[str]] = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and module.startswith("outdo."):
                modules.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in modules.items() if len(found) > 1}


def test_annotations_are_not_postponed():
    """Postponed annotations hide import cycles."""
    assert not [module for module, tree in trees().items() for node in imports(tree) if "__future__" in ast.dump(node)]


def test_the_repository_stands_alone():
    """No file names the place where it was written; spelled in halves, so that this file does not either."""
    halves = [("../sha", "red"), ("/wo", "rk/"), ("FAU", "LTS.md"), ("METH", "ODS.md"), ("MEAS", "URED.md")]
    halves += [("DES", "IGN.md"), ("seeds ", "folder"), ("/tmp/", "venv"), (".libr", "ary/")]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    assert files
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8", errors="replace") for path in files}
    assert not [f"{path}: {''.join(pair)}" for path, text in texts.items() for pair in halves if "".join(pair) in text]
