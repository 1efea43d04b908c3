"""The recipes in `examples/` are valid, and in their preference pairs the right answer is preferred."""

from pathlib import Path

import pytest

from outdo.config.file import load
from outdo.config.rules import conflicts
from outdo.extras.reward_models.preferences import comparisons_from

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted(path for path in EXAMPLES.rglob("*.toml") if not path.name.endswith(".band.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_setting_of_an_example_exists_and_has_an_effect(path):
    mistakes, notes = conflicts(load(path, ["model=m"]))  # an unknown setting is raised by `load`
    assert mistakes == []
    assert [note for note in notes if "has no effect" in note] == []


def test_the_right_one_of_two_solutions_is_preferred():
    pairs = comparisons_from(str(EXAMPLES / "sums_pairs.jsonl"), "pairs", {})
    assert len(pairs) == 300
    for pair in pairs:
        total = str(sum(map(int, pair.prompt.rstrip(":").split("+"))))
        assert [each.rpartition("#")[2] == total for each in pair.completions] == [True, False]
