"""A home for runs, and runs that several tests look at."""

from pathlib import Path

import pytest
from family_cases import Trained, write_family
from run_cases import outdo_, write_home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, data, reward and recipe; not to be changed."""
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def own_home(tmp_path: Path) -> Path:
    """The same, for one test to change."""
    return write_home(tmp_path)


@pytest.fixture(scope="session")
def straight(home: Path) -> Path:
    """Twelve steps without a pause. Not to be changed."""
    (home / "straight.log").write_text(outdo_(home, "train", "recipe.toml", "run=./straight", "steps=12"))
    return home / "straight"


@pytest.fixture(scope="session")
def six_steps(home: Path) -> Path:
    """Six steps of the twelve. Not to be changed."""
    outdo_(home, "train", "recipe.toml", "run=./six", "steps=6")
    return home / "six"


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with what the whole family needs besides: a teacher, a reward model, pieces of one's own."""
    return write_family(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def trained(family: Path) -> Trained:
    """Train there, in a folder that is returned."""
    return Trained(family)
