"""The notebooks of the documentation: every cell runs, with a short quickstart, and nothing but their text is kept."""

import ast
import json
import shlex
from pathlib import Path

import pandas as pd
import pytest

from outdo.extras.quickstart import settings

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
INSTALL = "%pip install --quiet outdo"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]


def shown_by(source: str, names: dict) -> object:
    """Run a cell of Python, and return the value of its last expression, which a notebook shows."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_there_are_three_that_the_site_lists():
    listed = (ROOT / "docs/notebooks/index.md").read_text(encoding="utf-8")
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "own_reward", "reading_a_run"]
    assert [path.name for path in NOTEBOOKS if f"({path.stem}.md)" not in listed] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_of_code_installs_and_no_output_is_kept(path: Path):
    assert code(path)[0] == INSTALL
    assert [cell for cell in cells(path) if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.usefixtures("short_quickstart")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, outdo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(settings, "RECIPE", f'{settings.RECIPE}\n[record]\nafter = "all"\n')
    names: dict = {}
    tables = 0
    for source in code(path)[1:]:
        if source.startswith("!outdo "):
            done = outdo(*shlex.split(source.replace("steps=20", "steps=2"))[1:])
            assert done.status == 0, f"{source}: {done.out}{done.error}"
        elif source.startswith("%%writefile "):
            first, _, text = source.partition("\n")
            Path(first.removeprefix("%%writefile ")).write_text(text, encoding="utf-8")
        else:
            shown = shown_by(source, names)
            assert not isinstance(shown, pd.DataFrame | pd.Series) or len(shown) > 0, source
            tables += shown is not None
    assert tables > 0
