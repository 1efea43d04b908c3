"""The recipes and the file of `docs/pieces.md` do what it says, and `docs/methods/index.md` has a line for every name.

The page's Python runs, as it is printed, in `tests/cli/test_eight_lines.py`.
"""

import ast
import re
from pathlib import Path

import pytest
import torch
from test_divergences import PLACEMENTS, distance, placed, truths
from toys import batch_of, rollout

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import Divergence
from outdo.algorithms.objectives.presets import dapo
from outdo.algorithms.objectives.ratios import sequence
from outdo.algorithms.objectives.surrogates import Clip
from outdo.algorithms.objectives.weights import sequence_mean
from outdo.algorithms.requirements import requirements_of
from outdo.config import names
from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.config.rules import conflicts
from outdo.trainer.build_method import advantage_of, objective_of
from outdo.utils.imports import resolve

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
    """The cells of every table row; `\\|` is a bar within a cell."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The page's recipes, in a folder with the file that they name."""
    (own,) = re.findall(r"```python\n(# my_pieces\.py\n.*?)```", PIECES, flags=re.DOTALL)
    (tmp_path / "my_pieces.py").write_text(own, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = []
    for block in re.findall(r"```toml\n(.*?)```", PIECES, flags=re.DOTALL):
        (tmp_path / "recipe.toml").write_text(block, encoding="utf-8")
        found.append(load(tmp_path / "recipe.toml", ["model=m", "data.path=x.jsonl"]))
    return found


def test_the_recipes_of_the_page_are_without_a_mistake(recipes: list[Recipe]) -> None:
    assert len(recipes) == 2
    assert [conflicts(recipe)[0] for recipe in recipes] == [[], []]


def test_a_recipe_exchanges_the_pieces_that_replace_does(recipes: list[Recipe]) -> None:
    made = objective_of(recipes[0])
    assert isinstance(made, ComposedObjective)
    assert (made.level, made.weight, made.entropy_bonus) == (sequence, sequence_mean, 0.001)
    assert made.surrogate == Clip(low=0.2, high=0.3) == dapo(clip_high=0.3).surrogate
    assert made.requires.old_entropy
    assert made.requires.entropy


def test_pieces_of_ones_own_are_as_good_as_named_ones(recipes: list[Recipe]) -> None:
    made, batch = objective_of(recipes[1]), batch_of([rollout(1, 1.0), rollout(1, 0.0)])
    assert isinstance(made, ComposedObjective)
    two = torch.full_like(batch.rollout_logprobs, 2.0)
    assert made.surrogate(two, two, torch.ones_like(two), batch).eq(2.0 - 0.5 * 8.0).all()
    advantages = advantage_of(recipes[1])(batch).advantages
    assert advantages is not None
    assert advantages.amax(1).tolist() == [1.0, 0.0]


def test_a_piece_of_ones_own_takes_ten_lines_and_an_advantage_five(recipes: list[Recipe]) -> None:
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.parse(Path("my_pieces.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert lengths["cubic"] <= 10
    assert lengths["best_only"] <= 5


@pytest.mark.parametrize("table", TABLES)
def test_every_name_has_a_line_among_the_methods(table: str) -> None:
    told = {name for first, *_ in rows(METHODS) for name in re.findall(r"`([a-z_0-9]+)", first)}
    assert set(TABLES[table]) <= told


def test_a_method_stands_beside_the_advantage_that_it_brings() -> None:
    table = METHODS.partition("## Objectives")[2].partition("###")[0]
    told = {re.findall(r"`([a-z_]+)`", cells[0])[-1]: cells[3] for cells in rows(table)[2:]}
    for name in names.OBJECTIVES:
        assert told[name].startswith(f"`{names.DEFAULT_ADVANTAGE.get(name, 'group_standardised')}`"), name


def test_the_catalogue_says_of_advantages_what_their_marks_say() -> None:
    needs = {name: requirements_of(resolve(spec)) for name, spec in names.ADVANTAGES.items()}
    assert {name for name, each in needs.items() if each.values} == names.WITH_CRITIC
    assert {name for name, each in needs.items() if each.reference} == names.WITH_REFERENCE


@pytest.mark.parametrize(("sampled", "divergence", "how", "expected"), PLACEMENTS)
def test_the_table_of_divergences_says_what_enumeration_finds(
    sampled: str, divergence: Divergence, how: str, expected: str
) -> None:
    gradient = placed(sampled, divergence, how)
    nothing = float(gradient.abs().max()) < 1e-12
    apart = ["no gradient", ""] if nothing else [f"{distance(gradient, of):.2f}" for of in truths().values()]
    times = {"as it is": "", "x ratio": " × ρ", "x detached ratio": " × sg[ρ]"}[how]
    policy = {"on": "on-policy", "off": "off-policy"}[sampled]
    (found,) = [cells for cells in rows(METHODS) if cells[0].startswith(f"{divergence.__name__}{times}, {policy}")]
    assert found[1:3] == apart
    assert expected in found[3]
