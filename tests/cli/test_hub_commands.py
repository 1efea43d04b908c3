"""Models and data sets of the Hub: their commits are written down, and a run that goes on has the same ones."""

import json
from pathlib import Path

import pytest
from command_cases import SMALL, outdo_process
from huggingface_hub import ModelCard

from outdo.config.file import load
from outdo.models.base_model import BaseModel
from outdo.models.inspect_folder import inspect_folder
from outdo.testing import tiny_model


def model_files(folder: Path, seed: int) -> dict[str, bytes]:
    """The files of a model in bfloat16."""
    model, tokenizer = tiny_model(seed=seed)
    for part in (model.bfloat16(), tokenizer):
        part.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def data_files(*numbers: int) -> dict[str, bytes]:
    rows = [{"question": f"1+{n}=", "answer": str(n + 1)} for n in numbers]
    return {"README.md": b"# sums\n", "train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()}


def test_a_run_downloads_its_model_and_data_writes_down_their_commits_and_goes_on_with_them(hub, tmp_path):
    run = tmp_path / "run"
    of_model = hub.add_commit("me/small", model_files(tmp_path / "first", 0))
    of_data = hub.add_commit("datasets/me/sums", data_files(*range(12)))
    revisions = {"me/small": of_model, "datasets/me/sums": of_data}
    data = ("data.path=me/sums", "data.eval_path=me/sums:train[:3]")
    done = outdo_process("train", "model=me/small", "train.adapter=lora", *data, *SMALL, f"run={run}", "steps=1")
    assert done.status == 0, done.error
    notes = (run / "start.txt").read_text()
    assert "model me/small: not on this machine yet; it is downloaded when the run starts" in notes
    assert f"data.path: 12 questions; columns: question -> prompt, answer -> answer; commit {of_data}" in notes
    assert load(run / "recipe.toml").weights == "bfloat16"  # as the files of the model are
    assert json.loads((run / "environment.json").read_text())["revisions"] == revisions
    checkpoint = run / "checkpoints" / "step_000001"
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("me/small", of_model)
    assert inspect_folder(checkpoint).name == f"me/small@{of_model}"

    assert hub.add_commit("me/small", model_files(tmp_path / "second", 1)) != of_model
    assert hub.add_commit("datasets/me/sums", data_files(*range(50, 70))) != of_data
    resumed = outdo_process("resume", run, "steps=2")
    assert resumed.status == 0, resumed.error
    lines = (run / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["revisions"] for line in lines] == [revisions] * 2
    held_out = [line for file in run.glob("held_out/*") for line in file.read_text().splitlines()]
    assert {json.loads(line)["prompt"] for line in held_out} == {"1+0=", "1+1=", "1+2="}


def test_a_base_in_the_folder_of_a_commit_is_a_folder_and_one_on_the_hub_has_the_commit(tmp_path):
    folder = tmp_path / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    assert BaseModel.of(str(folder), folder) == BaseModel(name=str(folder))
    assert BaseModel.of("me/small@main", folder) == BaseModel(name="me/small", revision="0123abc")


def test_a_model_is_uploaded_with_a_card_and_an_interrupted_upload_continues(hub, run, tmp_path):
    folder = tmp_path / "better"
    command = ("export", run, folder, "--push", "me/model", "--license", "mit")
    hub.refuse_commits = 1
    failed = outdo_process(*command)
    assert failed.status == 1
    assert "outdo: me/model: not uploaded:" in failed.error
    assert f"the model is in {folder}" in failed.error
    assert "Traceback" not in failed.error
    done = outdo_process(*command)
    assert done.status == 0, done.error
    assert "uploaded to http://127.0.0.1" in done.out
    assert hub.uploads == 1  # the weights, once
    assert [each.get("private") or each.get("visibility") == "private" for each in hub.created] == [True, True]
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    card = ModelCard(hub.files["README.md"].decode())
    data, summary = card.data, json.loads((run / "summary.json").read_text())
    assert (data.license, data.library_name, data.pipeline_tag) == ("mit", "transformers", "text-generation")
    assert {"outdo", "grpo"} <= set(data.tags)
    results = {each.metric_type: each.metric_value for each in data.eval_results}
    assert results == {"accuracy": summary["accuracy_after"], "mean_reward": summary["reward_after"]}
    assert "https://arxiv.org/abs/2402.03300" in card.text
    assert str(run.parent) not in card.text


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("GatedRepo", "me/big: this model of the Hub is gated; accept its conditions at https://huggingface.co/me/big"),
        ("RepoNotFound", "me/big: the Hub has no model me/big, or it is private: check the name"),
        ("RevisionNotFound", "me/big@v9: the model me/big of the Hub has no revision v9"),
    ],
)
def test_a_model_that_cannot_be_had_is_told_in_one_sentence(hub, sums, tmp_path, code, sentence):
    hub.missing["me/big"] = code
    name = sentence.partition(":")[0]
    done = outdo_process("train", f"model={name}", f"data.path={sums}", f"run={tmp_path}/run", "steps=1")
    assert done.status == 2
    assert sentence in done.error
    assert "Traceback" not in done.error
