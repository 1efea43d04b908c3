"""`cluster.replicas` unset: a small model on a CPU gets a process per core where that is worth it, and says so."""

import os
import tomllib
from pathlib import Path

import pytest
from run_cases import outdo_, write_home

from outdo.cli.processes import MOST, with_replicas
from outdo.config.file import load
from outdo.run.folder.run_folder import read_metrics
from outdo.testing import tiny_model

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LONG = ("threads=", "steps=2", "train.prompts=16", "sampling.max_tokens=256")  # 65,536 tokens at most
SHORT_ANSWERS = 'sampling.stop=["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "e", "i", "o", "u"]'
needs_cores = pytest.mark.skipif(CORES == 1, reason="one core has room for one process")


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
def test_a_small_model_gets_a_process_for_each_core_and_at_most_four(here: Path):
    assert chosen() == min(CORES, MOST)


@pytest.mark.parametrize(
    "setting",
    [
        "steps=1",  # 32,768 tokens at most
        "threads=2",
        "train.advantage=gae",
        'environment={name="tools",functions="score.py:score"}',
        'engine={name="builtin", processes=1}',
        "model=nowhere",
    ],
)
def test_otherwise_a_run_is_one_process(here: Path, setting: str):
    assert chosen(setting) == 1


def test_a_larger_model_is_one_process(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outdo.cli.processes.SMALL_MODEL", 1000)
    assert chosen() == 1


def test_a_number_that_is_set_stays(here: Path):
    assert chosen("cluster.replicas=3") == 3
    assert chosen("cluster.replicas=1") == 1


def test_a_gpu_is_left_to_one_process(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("outdo.cli.processes.ACCELERATORS", (tmp_path,))
    assert chosen("device=auto") == 1


def test_a_run_that_goes_on_keeps_its_number(here: Path):
    recipe = load(Path("recipe.toml"), LONG)
    for before in (1, 3):
        saved = load(Path("recipe.toml"), [f"cluster.replicas={before}"])
        assert with_replicas(recipe, saved).cluster.replicas == before


@needs_cores
def test_train_says_how_many_there_are_and_the_run_folder_has_the_number(home: Path):
    tiny_model(home / "model")
    run = home / "runs" / "chosen"
    said = outdo_(home, "train", "recipe.toml", *LONG, "train.group_size=8", SHORT_ANSWERS, "run=chosen")
    count = min(CORES, MOST)
    assert f"replicas: {count}, the fastest way to train a small model here (cluster.replicas = 1 for one)" in said
    assert tomllib.loads((run / "recipe.toml").read_text())["cluster"]["replicas"] == count
    assert "replicas/slowest" in read_metrics(run / "metrics.jsonl")[-1]
