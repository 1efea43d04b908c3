"""A model of the Hub: it is downloaded, its commit is written down, and a run that goes on has the same weights."""

import json
from pathlib import Path

import pytest
from command_cases import SMALL, outdo_process

from outdo.config.file import load
from outdo.models.base_model import BaseModel
from outdo.models.inspect_folder import inspect_folder
from outdo.testing import tiny_model


def files_of_model(folder: Path, seed: int) -> dict[str, bytes]:
    """The files of a model in bfloat16."""
    model, tokenizer = tiny_model(seed=seed)
    for part in (model.bfloat16(), tokenizer):
        part.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def trained(hub, gsm8k, tmp_path) -> tuple[Path, str]:
    """A run of one step that trains an adapter of a model of the Hub, and the commit of the model."""
    run, commit = tmp_path / "run", hub.add_commit("me/small", files_of_model(tmp_path / "first", 0))
    settings = ("model=me/small", "train.adapter=lora", f"data.path={gsm8k / 'train.jsonl'}", "data.eval_rows=3")
    done = outdo_process("train", *settings, *SMALL, f"run={run}", "steps=1")
    assert done.status == 0, done.error
    assert "model me/small: not on this machine yet; it is downloaded when the run starts" in done.out
    return run, commit


def test_a_run_decides_by_the_files_of_a_model_that_it_downloads_and_names_their_commit(trained):
    run, commit = trained
    assert load(run / "recipe.toml").weights == "bfloat16"  # as they are
    assert json.loads((run / "environment.json").read_text())["revisions"] == {"me/small": commit}
    checkpoint = run / "checkpoints" / "step_000001"
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("me/small", commit)
    assert inspect_folder(checkpoint).name == f"me/small@{commit}"


def test_a_base_in_the_folder_of_a_commit_is_a_folder_and_one_on_the_hub_has_the_commit(tmp_path):
    folder = tmp_path / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    assert BaseModel.of(str(folder), folder) == BaseModel(name=str(folder))
    assert BaseModel.of("me/small@main", folder) == BaseModel(name="me/small", revision="0123abc")


@pytest.mark.long
def test_a_resumed_run_has_the_base_that_it_began_with_also_if_the_hub_has_a_newer_one(hub, trained, tmp_path):
    run, commit = trained
    assert hub.add_commit("me/small", files_of_model(tmp_path / "second", 1)) != commit
    resumed = outdo_process("resume", run, "steps=2")
    assert resumed.status == 0, resumed.error
    revisions = [json.loads(line)["revisions"] for line in (run / "history.jsonl").read_text().splitlines()]
    assert revisions == [{"me/small": commit}] * 2
