"""The table of guards matches the source: else a guard could be lost, and nobody would notice."""

import ast
import subprocess
import sys
from pathlib import Path

from guard_table import ROOT, TABLES, Guard, read_guards

GUARDS = read_guards()


def source(guard: Guard) -> str:
    return (ROOT / "src/outdo" / guard.file).read_text(encoding="utf-8")


def test_there_are_guards_of_every_folder():
    assert len(GUARDS) >= 120
    folders = {path.name for path in (ROOT / "src/outdo").iterdir() if (path / "__init__.py").exists()}
    tables = {table.stem for table in TABLES.glob("*.toml")} - {"outdo"}
    assert {"algorithms", "models", "rewards", "rollouts", "run"} <= tables <= folders
    extras = {table.stem for table in (TABLES / "extras").glob("*.toml")}
    assert extras <= {path.name for path in (ROOT / "src/outdo/extras").iterdir()}


def test_the_code_of_each_guard_occurs_once():
    for guard in GUARDS.values():
        guard.taken_out_of(source(guard))


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


def test_what_a_guard_leaves_is_python_and_no_name_is_without_a_meaning(tmp_path: Path):
    """A test that fails because of a NameError proves nothing."""
    for guard in (guard for guard in GUARDS.values() if guard.file.endswith(".py")):
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
