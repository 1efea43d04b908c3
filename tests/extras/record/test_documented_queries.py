"""The queries of docs/record.md and docs/reading-a-run.md, as they are printed."""

import ast
import re
from pathlib import Path

import pytest
from made_records import TOKEN_TEXTS, record_of, steps_of

from outdo.extras.record import parquet
from outdo.extras.record.table import COLUMNS, record_table

DOCS = Path(__file__).parents[3] / "docs"
PAGE, TOUR = DOCS / "record.md", DOCS / "reading-a-run.md"
QUERIES = [
    query
    for page in (PAGE, TOUR)
    for query in re.findall(r"```python\n(import (?:duckdb|polars).*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three steps of the runs that the pages speak of, to be in."""
    for step in steps_of(3):
        for name in ("runs/mine", "quickstart/seed-0/run-1"):
            parquet.write(tmp_path / name, step.index, record_table(step, record_of(step), TOKEN_TEXTS, about={}))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs/mine"


@pytest.mark.parametrize("query", QUERIES, ids=["duckdb", "polars", "turns", "carries"])
def test_the_documented_queries_return_rows(run, query):
    *before, last = ast.parse(query).body
    assert isinstance(last, ast.Expr)
    names: dict = {}
    exec(compile(ast.Module(before, []), PAGE.name, "exec"), names)
    found = eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names)
    assert len(found) >= (1 if "carried" in query else 3)  # three steps are one row of ten
    assert "carried" in query or not {"None", "NULL", "null", "NaN"} & set(str(found).split())  # no sums, no carries


def test_every_column_is_explained(run):
    page = PAGE.read_text(encoding="utf-8")
    names = parquet.read(run, 1).schema.names
    assert set(COLUMNS) < set(names)
    assert [name for name in names if f"`{name}`" not in page] == []
