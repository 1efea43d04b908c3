"""The tables of docs/large-models.md are what the estimate gives."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_estimate():
    printed = runpy.run_path(str(ROOT / "benchmarks/large_models.py"), run_name="imported")["tables"]()
    page = (ROOT / "docs/large-models.md").read_text(encoding="utf-8")
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) == 13
    assert all(row in page for row in rows)
