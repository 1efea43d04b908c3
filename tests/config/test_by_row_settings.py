"""What a recipe says about environments that rows name, and what of it is refused."""

from typing import Any

import pytest

from outdo.config.environments import environment_mistakes, row_environments
from outdo.config.fields import Piece
from outdo.config.file import load
from outdo.config.resume import source_files

TOOLS = {"name": "tools", "functions": "examples.small_models.calculator:calc", "turns": 3}
GAME = "examples.small_models.guessing:Game"


def by_row(**options: Any) -> Piece:
    return Piece.model_validate({"name": "by_row", **options})


def test_rows_name_an_environment_or_none() -> None:
    piece = by_row(environments={"calculator": TOOLS, "game": GAME}, column="kind")
    assert list(environment_mistakes(piece)) == []
    rows = row_environments(piece)
    given = [{"kind": "game"}, {"kind": None}, {"kind": ""}, {"environment": "game"}]
    assert [rows.name_in(row) for row in given] == ["game", None, None, None]
    with pytest.raises(ValueError, match=r'"kind" names an environment "gam" that .* not have; did you mean game\?'):
        rows.name_in({"kind": "gam"})


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        (
            {"environments": {"a": "examples.small_models.guessing:Gme"}},
            'environments.a: "examples.small_models.guess',
        ),
        ({"environments": {"a": {**TOOLS, "turns": 0}}}, "environments.a.turns: expected a whole number"),
        ({"environments": {"a": "by_row"}}, "environments.a: rows name one environment, which is not by_row again"),
        ({"environments": {"a": GAME}, "turns": 3}, "turns: unknown option; by_row takes environments, column"),
        ({"environments": {"a": GAME}, "column": 3}, "column: expected the name of a column, found 3"),
        ({"environments": [GAME]}, "environments: expected a table such as"),
    ],
)
def test_environments_that_cannot_be_are_refused(options: dict[str, Any], mistake: str) -> None:
    (found,) = environment_mistakes(by_row(**options))
    assert found.startswith(f"environment.{mistake}")


def test_a_resume_compares_the_code_and_the_files_of_every_environment(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "game.py").write_text("class Game: ...\n")
    search = '{name = "tools", functions = [{name = "search", corpus = "docs.jsonl"}]}'
    environments = f'environment={{name = "by_row", environments = {{find = {search}, game = "game.py:Game"}}}}'
    recipe = load(None, ["model=m", "data.path=a.jsonl", environments])
    assert {path.name for path in source_files(recipe)} == {"docs.jsonl", "game.py"}
