"""docs/reliability.md names guards that exist, at least one for each fault, and tells how many there are."""

import re

from guard_table import ROOT, read_guards

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
GUARDS = read_guards()


def test_each_fault_of_the_page_has_guards_that_exist():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    assert len(rows) >= 60
    for row in rows:
        fault, _, guards = (cell.strip() for cell in row.strip("|").split(" | "))
        names = re.findall("`(.+?)`", guards)
        assert names, fault
        assert [name for name in names if name not in GUARDS] == [], fault


def test_the_page_tells_how_many_guards_there_are():
    assert f"in turn, {len(GUARDS)} in all" in PAGE.replace("\n", " ")
