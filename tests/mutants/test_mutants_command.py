"""The command takes out guards, tells red from green, and goes on where it was stopped."""

import subprocess
import sys
from pathlib import Path

import pytest
from guard_table import read_guards

pytestmark = pytest.mark.release

SOURCE = """
def root(number):
    if number < 0:
        raise ValueError
    if number == 4:
        return 2.0
    return number ** 0.5
"""
TESTS = """
import pytest
from outdo.roots import root

def test_a_negative_number_is_refused():
    open("ran", "a").write("x")
    with pytest.raises(ValueError):
        root(-1)

def test_nothing():
    root(4)
"""
TABLE = """
[negative]
guards = "A negative number is refused."
file = "roots.py"
code = "if number < 0:"
without = "if False:"
test = "test_roots.py::test_a_negative_number_is_refused"

[four]
guards = "The root of 4 is 2."
file = "roots.py"
code = "if number == 4:"
without = "if False:"
test = "test_roots.py::test_nothing"

[unreadable]
guards = "The file is Python."
file = "roots.py"
code = "if number == 4:"
without = "if number =:"
test = "test_roots.py::test_nothing"
"""
SCRIPT = """
import sys
from pathlib import Path
from guard_table import read_guards
from mutants import take_out_each

root = Path(sys.argv[1])
guards = read_guards(root / "guards")
sys.exit(take_out_each([guards[name] for name in sys.argv[2:]], root, root / "cache"))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with a guard that a test proves, one that no test proves, and one that is no guard."""
    for file, text in {
        "src/outdo/__init__.py": "",
        "src/outdo/roots.py": SOURCE,
        "tests/test_roots.py": TESTS,
        "guards/roots.toml": TABLE,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def taken_out(tree: Path, *names: str) -> tuple[int, list[str]]:
    """The exit status, and the lines that are printed, without the seconds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tree), *names],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return done.returncode, [line.partition(" (")[0] for line in done.stdout.splitlines()]


def test_a_test_that_stays_green_without_its_guard_is_an_error(tree: Path):
    status, lines = taken_out(tree, "negative", "four", "unreadable")
    assert status == 1
    assert [line.split() for line in lines[:3]] == [
        ["red", "roots.py", "negative"],
        ["GREEN", "roots.py", "four"],
        ["BROKEN", "roots.py", "unreadable"],
    ]
    assert lines[3:] == [
        "1 of 3 guards turn their test red when they are taken out.",
        "Not red: four, unreadable",
    ]
    assert (tree / "src/outdo/roots.py").read_text() == SOURCE


def test_what_is_known_is_not_run_again_until_the_source_changes(tree: Path):
    for source, runs in ((SOURCE, 2), (SOURCE, 2), (SOURCE + "\n# edited\n", 4)):  # with the guard, and without it
        (tree / "src/outdo/roots.py").write_text(source)
        assert taken_out(tree, "negative")[0] == 0
        assert (tree / "ran").read_text() == "x" * runs


def test_a_test_that_fails_anyway_and_a_guard_whose_code_is_not_there_are_errors(tree: Path):
    (tree / "tests/test_roots.py").write_text(TESTS.replace("root(-1)", "root(1)"))
    status, lines = taken_out(tree, "negative")
    assert status == 1
    assert lines[0] == "Some of the tests fail with every guard in place; --output shows why."
    assert lines[1].startswith("FAILED tests/test_roots.py::")
    for source in (SOURCE.replace("< 0", "<= -1"), SOURCE * 2):
        with pytest.raises(ValueError, match=r"negative: its code occurs [02] times in roots\.py, and not once"):
            read_guards(tree / "guards")["negative"].taken_out_of(source)
