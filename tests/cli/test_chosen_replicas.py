"""`cluster.replicas` unset: a small model on a CPU gets two replicas where that is worth it, and outdo says so."""

import tomllib
from pathlib import Path

import pytest
from run_cases import outdo_, write_home

from outdo.config.file import load
from outdo.config.replicas import COUNT, with_replicas
from outdo.run.folder.run_folder import read_metrics
from outdo.testing import tiny_model
from outdo.utils.machine import cores

LONG = ("threads=", "steps=2", "train.prompts=16", "sampling.max_tokens=256")  # 65,536 tokens at most
SHORT_ANSWERS = 'sampling.stop=["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "e", "i", "o", "u"]'
needs_cores = pytest.mark.skipif(cores() == 1, reason="one core has room for one process")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def chosen(*settings: str) -> int | None:
    return with_replicas(load(Path("recipe.toml"), [*LONG, "train.group_size=8", *settings])).cluster.replicas


@needs_cores
def test_a_small_model_gets_two_replicas_and_a_number_that_is_set_stays(here: Path):
    assert chosen() == COUNT == 2
    assert [chosen(f"cluster.replicas={number}") for number in (1, 3)] == [1, 3]
    recipe = load(Path("recipe.toml"), LONG)
    for before in (1, 3):  # of a run that goes on
        saved = load(Path("recipe.toml"), [f"cluster.replicas={before}"])
        assert with_replicas(recipe, saved).cluster.replicas == before


@pytest.mark.parametrize(
    "setting",
    [
        "steps=1",  # 32,768 tokens at most
        "threads=2",
        "train.advantage=gae",
        'environment={name="tools",functions="score.py:score"}',
        'engine={name="builtin", processes=1}',
        "model=owner/name",
        "reference.model=model",
        'rewards={name="reward_model",path="model"}',
    ],
)
def test_otherwise_a_run_is_one_process(here: Path, setting: str):
    assert chosen(setting) == 1


@pytest.mark.parametrize(
    ("what", "here_is"), [("cores", lambda: 1), ("main_memory", lambda: 2**30), ("SMALL_MODEL", 1000)]
)
def test_a_small_machine_or_a_larger_model_has_room_for_one_process(
    here: Path, monkeypatch, what: str, here_is: object
):
    monkeypatch.setattr(f"outdo.config.replicas.{what}", here_is)
    assert chosen() == 1


def test_a_gpu_is_left_to_one_process(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("outdo.config.replicas.DRIVERS", (tmp_path,))
    assert chosen("device=auto") == 1


@needs_cores
def test_check_and_train_say_how_many_there_are_and_the_run_folder_has_the_number(home: Path):
    tiny_model(home / "model")
    run, recipe = home / "runs" / "chosen", ("recipe.toml", *LONG, "train.group_size=8", SHORT_ANSWERS)
    note = "replicas: 2 processes train together (cluster.replicas = 1 for one; unset, outdo takes 2 for a small model"
    assert note in " ".join(outdo_(home, "check", *recipe).split())
    said = outdo_(home, "train", *recipe, "run=chosen", "--verbose")
    assert said.count(note) == said.count(", in 2 processes; run folder: ") == 1
    assert note in (run / "start.txt").read_text()
    assert tomllib.loads((run / "recipe.toml").read_text())["cluster"]["replicas"] == 2
    assert "replicas/slowest" in read_metrics(run / "metrics.jsonl")[-1]
