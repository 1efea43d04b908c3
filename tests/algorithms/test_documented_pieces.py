"""Test that the recipes and the file in `docs/pieces.md` work, and that `docs/methods/index.md` lists every name.

`tests/cli/test_printed_programs.py` runs the Python code of the page as printed.
"""

import re
from pathlib import Path

import pytest
import torch
from test_divergences import PLACEMENTS, distance, mean_gradient, true_gradients
from toys import batch_of, rollout

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import Divergence
from outdo.algorithms.objectives.presets import dapo
from outdo.algorithms.objectives.ratios import sequence
from outdo.algorithms.objectives.surrogates import Clip
from outdo.algorithms.objectives.weights import sequence_mean
from outdo.config import methods, names
from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.config.rules import conflicts
from outdo.run.assemble.method import advantage_of, objective_of

DOCS = Path(__file__).parents[2] / "docs"
PIECES = (DOCS / "pieces.md").read_text(encoding="utf-8")
METHODS = (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
TABLES = {
    "objectives": names.OBJECTIVES,
    "advantages": names.ADVANTAGES,
    "critics": names.CRITICS,
    "stops": names.STOPS,
    **names.COMPOSED_PIECES,
}


def rows(page: str) -> list[list[str]]:
    """Return the cells of every table row; `\\|` is a bar within a cell."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Load the recipes of the page in a folder with the file that they name."""
    (own,) = re.findall(r"```python\n(# my_pieces\.py\n.*?)```", PIECES, flags=re.DOTALL)
    (tmp_path / "my_pieces.py").write_text(own, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loaded = []
    for block in re.findall(r"```toml\n(.*?)```", PIECES, flags=re.DOTALL):
        (tmp_path / "recipe.toml").write_text(block, encoding="utf-8")
        loaded.append(load(tmp_path / "recipe.toml", ["model=m", "data.path=x.jsonl"]))
    return loaded


def test_the_recipes_of_the_page_are_valid(recipes: list[Recipe]) -> None:
    assert len(recipes) == 2
    assert [conflicts(recipe)[0] for recipe in recipes] == [[], []]


def test_a_recipe_replaces_the_same_pieces_as_replace_in_python(recipes: list[Recipe]) -> None:
    objective = objective_of(recipes[0])
    assert isinstance(objective, ComposedObjective)
    assert (objective.level, objective.weight, objective.entropy_bonus) == (sequence, sequence_mean, 0.001)
    assert objective.surrogate == Clip(low=0.2, high=0.3) == dapo(clip_high=0.3).surrogate
    assert objective.requires.old_sums
    assert objective.requires.sums


def test_custom_pieces_work_like_named_ones(recipes: list[Recipe]) -> None:
    objective, batch = objective_of(recipes[1]), batch_of([rollout(1, 1.0), rollout(1, 0.0)])
    assert isinstance(objective, ComposedObjective)
    two = torch.full_like(batch.rollout_logprobs, 2.0)
    assert objective.surrogate(two, two, torch.ones_like(two), batch).eq(2.0 - 0.5 * 8.0).all()
    advantages = advantage_of(recipes[1])(batch).advantages
    assert advantages.amax(1).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_listed_on_the_methods_page(table: str) -> None:
    listed = {name for first, *_ in rows(METHODS) for name in re.findall(r"`([a-z_0-9]+)", first)}
    assert set(TABLES[table]) <= listed


def test_the_methods_page_lists_the_default_advantage_of_every_objective() -> None:
    table = METHODS.partition("## Objectives")[2].partition("###")[0]
    listed = {re.findall(r"`([a-z_]+)`", cells[0])[-1]: cells[3] for cells in rows(table)[2:]}
    for name in names.OBJECTIVES:
        assert listed[name].startswith(f"`{methods.OBJECTIVES[name].published_with}`"), name


@pytest.mark.parametrize(("sampled", "divergence", "placement", "expected"), PLACEMENTS)
def test_the_table_of_divergences_agrees_with_the_enumeration(
    sampled: str, divergence: Divergence, placement: str, expected: str
) -> None:
    gradient = mean_gradient(sampled, divergence, placement)
    nothing = float(gradient.abs().max()) < 1e-12
    distances = (
        ["no gradient", ""] if nothing else [f"{distance(gradient, exact):.2f}" for exact in true_gradients().values()]
    )
    times = {"as it is": "", "x ratio": " × ρ", "x detached ratio": " × sg[ρ]"}[placement]
    policy = {"on": "on-policy", "off": "off-policy"}[sampled]
    (row,) = [cells for cells in rows(METHODS) if cells[0].startswith(f"{divergence.__name__}{times}, {policy}")]
    assert row[1:3] == distances
    assert expected in row[3]
