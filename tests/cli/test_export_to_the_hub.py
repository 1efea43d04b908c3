"""`outdo export --push`, and models of the Hub that cannot be had, against a stand-in for its API."""

import json

import pytest
from command_cases import outdo_process
from huggingface_hub import ModelCard


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


def test_another_model_is_not_uploaded_in_the_place_of_this_one(hub, run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/README.md").write_text("another model")
    done = outdo_process("export", run, tmp_path / "other", "--push", "me/model")
    assert done.status == 2
    assert "choose a new folder" in done.error
    assert not hub.created


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
