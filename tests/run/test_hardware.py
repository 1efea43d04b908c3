"""The hardware of a run: threads, and the libraries of its products."""

from pathlib import Path

import pytest

from outdo.config.fields import GradientProducts
from outdo.config.file import load
from outdo.models import onednn
from outdo.models.fast.fastest_products import Measured
from outdo.models.inspect_folder import inspect_folder
from outdo.models.onednn import Gradients
from outdo.run.assemble import assemble, hardware
from outdo.utils.world import World

TWO = ["cluster.replicas=2"]
needs_onednn = pytest.mark.skipif(not onednn.available(), reason="there is nothing to choose without oneDNN")


@pytest.mark.parametrize(("settings", "replicas", "threads"), [([], "1", 4), (["threads=3"], "1", 3), (TWO, "2", 2)])
def test_a_run_has_the_threads_of_its_recipe_or_a_share_of_those_of_torch(
    home: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], replicas: str, threads: int
):
    monkeypatch.chdir(home)
    monkeypatch.setattr(hardware.torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(hardware.torch, "set_num_threads", (chosen := []).append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", replicas)
    resolved, notes = hardware.resolve_hardware(load("recipe.toml", ["threads=", *settings]), inspect_folder("model"))
    assert [resolved.threads] == chosen == [threads]
    assert any(note.startswith(f"threads: {threads} (") for note in notes)


def test_a_device_that_stands_in_the_recipe_is_not_called_requested(home: Path, monkeypatch: pytest.MonkeyPatch):
    """The recipe of a run has the device that was chosen, which nobody requests when it is resumed."""
    monkeypatch.chdir(home)
    _, notes = hardware.resolve_hardware(load("recipe.toml", ["device=cpu"]), inspect_folder("model"))
    assert any(note.startswith("device: cpu (set in the recipe), ") for note in notes)


def measured(monkeypatch: pytest.MonkeyPatch, found: Measured | None) -> None:
    monkeypatch.setattr("outdo.models.fast.fastest_products.fastest_gradients", lambda matrices: found)


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
    run = assemble.assemble_run(load("recipe.toml", ["device=cpu", "threads=1", libraries]))
    run.reward.close()
    assert run.models.policy.forward.gradients == Gradients("mkl", "onednn")


class Second(World):
    """A process that gets what the first one has found."""

    def from_first(self, compute):
        return GradientProducts(input="mkl", weight="mkl"), ["gradient products: of the first"]


def test_a_replica_takes_what_the_first_one_measured(home: Path, monkeypatch):
    monkeypatch.chdir(home)
    measured(monkeypatch, Measured(Gradients("onednn", "onednn"), 0.9, 0.9, Path("kept.json")))
    resolved, notes = hardware.resolve_hardware(load("recipe.toml", []), inspect_folder("model"), Second())
    assert hardware.gradients_of(resolved) == Gradients("mkl", "mkl")
    assert "gradient products: of the first" in notes
