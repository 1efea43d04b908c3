"""The hardware of a run: workers, and the libraries of its products."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import MAY_MOUNT, outdo_, weights

import outdo
from outdo.config.file import load
from outdo.models import onednn
from outdo.models.fastest_products import Measured
from outdo.models.inspect_folder import inspect_folder
from outdo.models.onednn import Gradients
from outdo.trainer import build, hardware

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="there is nothing to choose without oneDNN")


@pytest.fixture
def recipe(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(home)
    return load("recipe.toml", ["workers=4"])


@pytest.mark.parametrize(("free", "workers"), [(1000, 4), (157, 4), (156, 3), (78, 1), (0, 1)])
def test_workers_are_as_many_as_shared_memory_has_room_for(recipe, monkeypatch, free: int, workers: int):
    """Each model of 10 million weights takes 39.1 MiB: the weights once, and a gradient for each further worker."""
    usage = shutil.disk_usage("/")._replace(free=free * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(hardware, "SHARED_MEMORY", Path("/"))
    found, why = hardware._fit_shared_memory(recipe, 4, 10_000_000, "set in the recipe")
    assert found == workers
    assert ("MiB free, and 4 workers need" in why) == (workers < 4)


@pytest.mark.skipif(not MAY_MOUNT, reason="no permission to mount a small /dev/shm")
def test_a_run_in_a_small_shared_memory_takes_fewer_workers_and_says_so(own_home: Path):
    command = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} -m outdo.cli.main train recipe.toml"
    environment = os.environ | {"PYTHONPATH": str(Path(outdo.__file__).parent.parent)}
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{command} run=./run steps=2 threads=2 workers=2"],
        cwd=own_home,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "workers: 1, threads per worker: 2 (/dev/shm has 0 MiB free, and 2 workers need" in ended.stdout
    assert weights(own_home / "run")


def measured(monkeypatch: pytest.MonkeyPatch, found: Measured | None) -> None:
    monkeypatch.setattr(hardware, "fastest_gradients", lambda matrices: found)


def test_the_libraries_that_were_measured_stand_in_the_recipe_of_the_run(home: Path, monkeypatch):
    monkeypatch.chdir(home)
    recipe, facts = load("recipe.toml", []), inspect_folder("model")
    measured(monkeypatch, Measured(Gradients("onednn", "mkl"), 0.9, 1.3, Path("kept.json")))
    resolved, notes = hardware.resolve_hardware(recipe, facts)
    assert hardware.gradients_of(resolved) == Gradients("onednn", "mkl")
    assert (
        "gradient products: of inputs by oneDNN, of weights by MKL "
        "(MKL is 0.90 and 1.30 times as fast as oneDNN here: kept.json)"
    ) in notes
    measured(monkeypatch, Measured(Gradients("mkl", "onednn"), 2.0, 0.5, Path("kept.json")))
    again, notes = hardware.resolve_hardware(resolved, facts)
    assert again == resolved
    assert "gradient products: of inputs by oneDNN, of weights by MKL (set in the recipe)" in notes


def test_where_nothing_is_measured_nothing_is_said(home: Path, monkeypatch):
    monkeypatch.chdir(home)
    measured(monkeypatch, None)
    resolved, notes = hardware.resolve_hardware(load("recipe.toml", []), inspect_folder("model"))
    assert resolved.gradient_products is None
    assert hardware.gradients_of(resolved) == Gradients()
    assert not any("gradient products" in note for note in notes)


@pytest.mark.parametrize(("share", "said"), [(None, False), (0.0, False), (0.09, False), (0.4, True)])
def test_a_run_says_that_other_programs_compute(share: float | None, said: bool):
    notes = hardware.busy_notes(share)
    assert len(notes) == said
    assert not said or "for 40% of their time" in notes[0]


@needs_onednn
def test_a_run_computes_its_gradients_by_the_libraries_of_its_recipe(home: Path, monkeypatch: pytest.MonkeyPatch):
    """On some processors both give a small model the same bits, so that bits cannot tell."""
    monkeypatch.chdir(home)
    libraries = "gradient_products={input='mkl', weight='onednn'}"
    run = build.build_run(load("recipe.toml", ["device=cpu", "workers=1", "threads=1", libraries]))
    run.reward.close()
    assert run.models.policy.forward.gradients == Gradients("mkl", "onednn")


@needs_onednn
def test_a_run_by_libraries_of_its_recipe_has_the_same_bits_again(own_home: Path):
    hashes = []
    for name in ("first", "again"):
        setting = "gradient_products={input='mkl', weight='mkl'}"
        said = outdo_(own_home, "train", "recipe.toml", f"run=./{name}", "steps=2", "workers=1", "threads=1", setting)
        assert "of weights by MKL (set in the recipe)" in said
        hashes.append(weights(own_home / name))
    assert hashes[0] == hashes[1]
