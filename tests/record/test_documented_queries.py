"""The three queries of docs/record.md, as they are printed."""

import ast
import re
from pathlib import Path

import pytest
from made_records import SPELLING, record_of, steps_of

from outdo.record import files
from outdo.record.table import COLUMNS, table

PAGE = Path(__file__).parents[2] / "docs" / "record.md"
QUERIES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the three steps of `runs/mine` in it, to be in."""
    for step in steps_of(3):
        files.write(tmp_path / "runs/mine", step.index, table(step, record_of(step), SPELLING, about={}))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs/mine"


@pytest.mark.parametrize("query", QUERIES, ids=["duckdb", "polars", "pandas"])
def test_the_queries_of_the_page_answer(run, query):
    *before, last = ast.parse(query).body
    assert isinstance(last, ast.Expr)
    names: dict = {}
    exec(compile(ast.Module(before, []), PAGE.name, "exec"), names)
    found = eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names)
    assert len(found) >= 3
    assert "None" not in str(found)


def test_every_column_is_explained(run):
    page = PAGE.read_text(encoding="utf-8")
    names = files.read(run, 1).schema.names
    assert set(COLUMNS) < set(names)
    assert [name for name in names if f"`{name}`" not in page] == []
