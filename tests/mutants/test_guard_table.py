"""The table of guards matches the source: else a guard could be lost, and nobody would notice."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

from guard_table import ROOT, TABLES, Guard, read_guards

GUARDS = read_guards()
PYTHON = [guard for guard in GUARDS.values() if guard.file.endswith(".py")]


def source(guard: Guard) -> str:
    return (ROOT / "src/outdo" / guard.file).read_text(encoding="utf-8")


def test_there_are_guards_of_every_folder():
    assert len(GUARDS) >= 120
    folders = {path.name for path in (ROOT / "src/outdo").iterdir() if (path / "__init__.py").exists()}
    tables = {table.stem for table in TABLES.glob("*.toml")} - {"outdo"}
    assert {"algorithms", "models", "rewards", "rollouts", "run"} <= tables <= folders
    extras = {table.stem for table in (TABLES / "extras").glob("*.toml")}
    assert extras <= {path.name for path in (ROOT / "src/outdo/extras").iterdir()}


def test_the_code_of_each_guard_occurs_once_and_what_is_left_is_python():
    for guard in GUARDS.values():
        guard.taken_out_of(source(guard))
    for guard in PYTHON:
        before = around(guard)
        old, new = (ast.dump(ast.parse(text)) for text in (before, guard.taken_out_of(before)))
        assert old != new, guard.name


def around(guard: Guard) -> str:
    """The whole statements of a file that the code of a guard is in: the file is Python as long as they are."""
    text = source(guard)
    first = text.count("\n", 0, text.index(guard.code)) + 1
    last = first + guard.code.count("\n")
    parts = [(start, end) for start, end in statements(guard.file) if start <= last and first <= end]
    start, end = min(first, parts[0][0]), max(last, parts[-1][1])
    return "\n".join(text.split("\n")[start - 1 : end])


@cache
def statements(file: str) -> list[tuple[int, int]]:
    """The first and the last line of each statement of a file that stands in no other."""
    found = ast.parse((ROOT / "src/outdo" / file).read_text(encoding="utf-8")).body
    return [
        (min(each.lineno for each in (node, *getattr(node, "decorator_list", ()))), node.end_lineno or node.lineno)
        for node in found
    ]


def test_the_test_of_each_guard_exists():
    known = {
        file: functions(ROOT / "tests" / file) for file in {each.test.partition("::")[0] for each in GUARDS.values()}
    }
    for guard in GUARDS.values():
        file, _, name = guard.test.partition("::")
        assert name.partition("[")[0] in known[file], guard.name


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_documentation_tells_how_many_guards_there_are():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert f"in turn, {len(GUARDS)} in all" in page.replace("\n", " ")


def test_a_guard_is_one_sentence():
    assert not [guard.name for guard in GUARDS.values() if not guard.guards.endswith(".") or "\n" in guard.guards]


def test_no_guard_leaves_a_name_without_a_meaning(tmp_path: Path):
    """A test that fails because of a NameError proves nothing."""
    for guard in PYTHON:
        file = tmp_path / f"{guard.name.replace('-', '_')}.py"
        file.write_text(guard.taken_out_of(source(guard)), encoding="utf-8")
    ruff = Path(sys.executable).with_name("ruff")
    found = subprocess.run(
        [ruff, "check", "--isolated", "--select", "E9,F821", "--ignore-noqa", "--output-format", "concise", tmp_path],
        capture_output=True,
        text=True,
    )
    undefined = [line for line in found.stdout.splitlines() if ": F821 Undefined name `" in line]
    assert not [line for line in undefined if not is_annotation(line)]
    assert "invalid-syntax" not in found.stdout


def is_annotation(line: str) -> bool:
    """Whether a name is a dimension: ruff reads the "B T" of Float[Tensor, "B T"] as an annotation."""
    return len(line.split("`")[1]) == 1
