"""docs/reliability.md names tests and guards that exist, and each guard beside its test."""

import re
from collections.abc import Iterator

from guard_table import ROOT, read_guards

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
GUARDS = read_guards()


def rows() -> Iterator[tuple[str, list[str], list[str]]]:
    """The fault of each row, its tests, and the guards of each test."""
    for line in PAGE.partition("## Not built yet")[0].splitlines():
        if line.startswith("| ") and not line.startswith("| fault |"):
            fault, _, tests, guards = (cell.strip() for cell in line.strip("|").split(" | "))
            yield fault, tests.split("<br>"), guards.split("<br>")


def test_each_guard_of_the_page_stands_beside_its_test():
    assert len(list(rows())) >= 60
    for fault, tests, guards in rows():
        for test, names in zip(tests, guards, strict=True):
            found = {GUARDS[name].test.partition("[")[0] for name in re.findall("`(.+?)`", names)}
            assert found == {test.strip("`")}, fault


def test_the_page_tells_how_many_guards_there_are():
    assert f"in turn, {len(GUARDS)} in all" in PAGE.replace("\n", " ")
