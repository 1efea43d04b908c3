"""A new advantage is written in two places: its function, with its marks, and its row on the page of the methods."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import write_home

from outdo.config.methods import ADVANTAGES

ROOT = Path(__file__).parents[2]
FUNCTION = '''

@marks.advantage(compares_group=True)
def median_centred(
    rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, factor: float = 1.0
) -> Float[Tensor, "B"]:
    """Â_i = factor · (r_i - the median of its group)."""
    medians = torch.stack([rewards[group == own].median() for own in group])
    return factor * (rewards - medians)
'''


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The source with one more function."""
    for folder in ("src/outdo", ".ci"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with (tmp_path / "src/outdo/algorithms/advantages/group.py").open("a", encoding="utf-8") as file:
        file.write(FUNCTION)
    return tmp_path


def called(source: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, which imports outdo from another source."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_a_marked_function_is_an_advantage_once_the_table_is_written(changed: Path) -> None:
    home = changed / "home"
    home.mkdir()
    write_home(home)
    chosen = "train.advantage={name='median_centred', factor=2.0}"

    before = called(changed, home, "-m", "outdo", "train", "recipe.toml", chosen)
    assert (before.returncode, "train.advantage" in before.stderr) == (2, True)

    written = called(changed, changed, ".ci/methods.py")
    assert f"{len(ADVANTAGES) + 1} advantages" in written.stdout, written.stderr

    trained = called(changed, home, "-m", "outdo", "train", "recipe.toml", chosen, "run=new", "steps=2")
    assert trained.returncode == 0, trained.stderr
    steps = [json.loads(line)["step"] for line in (home / "runs/new/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
    assert "advantage: median_centred (factor = 2.0)" in (home / "runs/new/start.txt").read_text()

    refused = called(changed, home, "-m", "outdo", "train", "recipe.toml", chosen, "train.group_size=1")
    assert refused.returncode == 2
    assert "median_centred compares the answers to a question with each other" in refused.stderr
