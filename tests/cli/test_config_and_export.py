"""`outdo config` writes a recipe that can be used, `outdo export` a model folder that explains itself."""

import json
import re
import shutil
import tomllib

import pytest
import torch
from command_cases import SMALL
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from outdo.config.file import dump, load
from outdo.config.paths import with_file_names
from outdo.config.recipe import Recipe
from outdo.config.settings import settings
from outdo.run.export.export import export
from outdo.run.export.find_model import find_model


def test_the_commented_recipe_has_every_setting_and_loads_back_once_model_and_data_are_given(outdo, tmp_path):
    text = outdo("config").out
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    given = ["model=m", "data.path=d.jsonl"]
    assert load(path, given) == load(None, given)
    filled = text.replace('# model = ""', 'model = "m"').replace('# path = ""', 'path = "d.jsonl"')
    path.write_text(filled, encoding="utf-8")
    assert load(path) == load(None, given)
    for key, setting in settings().items():
        name = key.rpartition(".")[2]
        told = [line for line in text.splitlines() if line.removeprefix("# ").startswith(f"{name} =")]
        assert any(setting.description in line for line in told), key


def test_the_schema_and_the_pieces_are_two_questions(outdo):
    done = outdo("config", "--schema", "--pieces")
    assert (done.status, done.out) == (2, "")
    assert "give either --schema or --pieces" in done.error


def test_the_schema_is_one(outdo):
    schema = json.loads(outdo("config", "--schema").out)
    assert schema["properties"].keys() == Recipe.model_fields.keys()
    assert (set(schema["required"]), schema["additionalProperties"]) == ({"model", "data"}, False)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    return export(find_model(str(run)), tmp_path_factory.mktemp("exported") / "model")


def test_an_exported_model_is_the_newest_checkpoint_and_loads_anywhere(exported, run):
    weights = load_file(exported / "model.safetensors")
    saved = load_file(run / "checkpoints" / "step_000002" / "model.safetensors")
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    AutoModelForCausalLM.from_pretrained(exported)
    assert AutoTokenizer.from_pretrained(exported).encode("1+1=")
    assert not {"state", "manifest.json"} & {path.name for path in exported.iterdir()}


def test_an_export_has_the_dtype_of_the_model_that_the_run_started_from(outdo, run, model, tmp_path):
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(tmp_path / "source")
    own = shutil.copytree(run, tmp_path / "run")
    recipe = (own / "recipe.toml").read_text(encoding="utf-8")
    (own / "recipe.toml").write_text(recipe.replace(f'"{model}"', f'"{tmp_path / "source"}"'), encoding="utf-8")
    saved = load_file(run / "checkpoints" / "step_000002" / "model.safetensors")
    for folder, options, dtype in (("as_source", [], "bfloat16"), ("other", ["--dtype", "float32"], "float32")):
        assert outdo("export", own, tmp_path / folder, *options).status == 0
        weights = load_file(tmp_path / folder / "model.safetensors")
        expected = {name: value.to(getattr(torch, dtype)) for name, value in saved.items()}
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        assert AutoModelForCausalLM.from_pretrained(tmp_path / folder).dtype == getattr(torch, dtype)
        assert (tmp_path / folder / "tokenizer.json").exists()
    shutil.rmtree(tmp_path / "source")
    lost = outdo("export", own, tmp_path / "lost")
    assert (lost.status, "cannot be read; choose one: --dtype" in lost.error) == (2, True)
    assert not (tmp_path / "lost").exists()


def test_the_card_tells_before_and_after_and_the_whole_recipe_and_no_path_of_this_machine(exported, run):
    card = (exported / "README.md").read_text(encoding="utf-8")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    for name in ("greedy", "sampled"):
        assert f"| right, {name} | {summary['before'][name]:.1%} [" in card
    recipe = card.partition("```toml\n")[2].partition("\n```")[0]
    saved = load(run / "recipe.toml")
    assert tomllib.loads(recipe) == tomllib.loads(dump(with_file_names(saved)))
    assert tomllib.loads(recipe)["train"] == tomllib.loads(dump(saved))["train"]
    assert str(run.parent) in (run / "recipe.toml").read_text(encoding="utf-8")
    assert not re.findall(r"""["'`(= ]/\w""", card)


@pytest.mark.parametrize("option", ["--merge", "--dtype=bfloat16"])
def test_a_folder_with_another_form_of_the_model_is_not_uploaded(
    outdo, run, model, sums, tmp_path, monkeypatch, option
):
    uploaded = []
    monkeypatch.setattr("outdo.cli.export.load_extra", lambda *_: lambda folder, *_, **how: uploaded.append(folder))
    if option == "--merge":
        run = tmp_path / "run"
        settings = (f"model={model}", f"data.path={sums}", *SMALL, "train.adapter=lora", f"run={run}", "steps=1")
        assert outdo("train", *settings).status == 0
    folder = tmp_path / "exported"
    assert outdo("export", run, folder).status == 0
    other = outdo("export", run, folder, option, "--push", "me/model")
    assert (other.status, "exists and is not empty; choose a new folder" in other.error) == (2, True)
    assert not uploaded
    assert outdo("export", run, folder, "--push", "me/model").status == 0
    assert uploaded == [folder]


def test_a_folder_of_another_dtype_is_not_uploaded_without_one(outdo, run, tmp_path, monkeypatch):
    uploaded = []
    monkeypatch.setattr("outdo.cli.export.load_extra", lambda *_: lambda folder, *_, **how: uploaded.append(folder))
    folder = tmp_path / "exported"
    assert outdo("export", run, folder, "--dtype", "bfloat16").status == 0
    without = outdo("export", run, folder, "--push", "me/model")
    assert (without.status, "exists and is not empty; choose a new folder" in without.error) == (2, True)
    assert not uploaded
    assert outdo("export", run, folder, "--push", "me/model", "--dtype", "bfloat16").status == 0
    assert uploaded == [folder]


def test_export_writes_over_nothing_and_takes_only_runs(outdo, run, exported, model, tmp_path):
    over = outdo("export", run, exported)
    assert (over.status, "choose a new folder" in over.error) == (2, True)
    no_run = outdo("export", model, tmp_path / "new")
    assert (no_run.status, "not a run folder" in no_run.error) == (2, True)
    done = outdo("export", run, tmp_path / "best", "--best")
    assert done.status == 0
    assert "best" in done.out
