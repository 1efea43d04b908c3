"""Runs that train an adapter, through the command line: what is checked, saved, resumed and refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from kill_cases import assert_same, killed_and_resumed
from run_cases import outdo_, saved, timeless, weights
from transformers import AutoModelForCausalLM

from outdo.models.policy import Policy
from outdo.run.checkpoints.checkpoint import weights_hash
from outdo.testing import tiny_model

ADAPTER = 'train.adapter={name = "lora", rank = 4, alpha = 8, targets = "all-linear", rslora = true}'
LORA = (ADAPTER, "optim.lr=1e-2", 'train.objective={name = "grpo", beta = 0.1}', "steps=12", "eval.every=6")
UPDATED = ("reference.sync.every=2", "train.passes=2", "steps=6", "checkpoint.every=1")
PPO = (ADAPTER, "optim.lr=1e-2", "train.objective=ppo", "steps=6")


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / f"step_{saved(run)[-1]:06d}"


@pytest.fixture(scope="module")
def adapter_run(home: Path) -> Path:
    """Twelve steps without a pause. Not to be changed."""
    said = outdo_(home, "train", "recipe.toml", "run=./adapter", "--verbose", *LORA)
    assert "adapter: lora (rank = 4, alpha = 8, targets = all-linear, rslora = True)" in said
    assert f"adapter: 4,096 weights are trained; those of {home / 'model'} are frozen" in said
    assert "training a lora adapter (4,096 weights) of model by grpo on 12 questions: 12 steps of " in said
    return home / "adapter"


def test_a_run_trains_the_adapter_and_leaves_the_base_as_it_is(home: Path, adapter_run: Path):
    kl = [line["kl"] for line in timeless(adapter_run)]
    assert kl[0] == 0  # the reference is the base: the adapter computes nothing yet
    assert kl[-1] > 0.01
    assert sorted(path.name for path in checkpoint(adapter_run).glob("*adapter*")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert not list(checkpoint(adapter_run).glob("model*"))
    policy = Policy.load(checkpoint(adapter_run))
    before = dict(Policy.load(home / "model").model.named_parameters())
    frozen = {name: weight for name, weight in policy.model.named_parameters() if not weight.requires_grad}
    assert len(frozen) == len(before)
    assert all(before[name.replace(".base_layer", "")].equal(weight) for name, weight in frozen.items())


@pytest.mark.release
def test_a_run_that_is_killed_equals_an_uninterrupted_one(home: Path, adapter_run: Path):
    run, base = home / "adapter-killed", weights_hash(home / "model")
    killed_and_resumed(home, run, 3, *LORA)
    assert_same(run, adapter_run)
    assert weights_hash(home / "model") == base


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        (*LORA, "train.adapter.init_lora_weights=pissa", "train.adapter.rslora=false", *UPDATED),
        (*LORA, *UPDATED),
        (*PPO, "train.objective.beta=0.1"),
    ],
    ids=["an initialisation that changes the base", "updated reference", "critic"],
)
def test_so_does_one_with(home: Path, settings: tuple[str, ...], request: pytest.FixtureRequest):
    name = request.node.callspec.id.replace(" ", "-")
    outdo_(home, "train", "recipe.toml", f"run=./{name}", *settings)
    killed_and_resumed(home, home / f"{name}-killed", 1, *settings)
    assert_same(home / f"{name}-killed", home / name)
    assert any(line["kl"] > 0 for line in timeless(home / name))


@pytest.mark.release
def test_resume_refuses_another_base_and_another_adapter(home: Path, own_home: Path):
    outdo_(own_home, "train", "recipe.toml", "run=./run", *LORA, "steps=1", "eval.every=0")
    said = outdo_(own_home, "resume", "run", "train.adapter.rank=8", "steps=2", status=2)
    assert "train.adapter.rank: 4 in the saved run, 8 now; this changes the run" in said
    tiny_model(own_home / "model", seed=1)
    for command in (["resume", "run", "steps=2"], ["eval", "run"]):
        assert "an adapter of another base: model.safetensors of" in outdo_(own_home, *command, status=2)
    shutil.copytree(home / "model", own_home / "model", dirs_exist_ok=True)
    assert "resumed after step 1" in outdo_(own_home, "resume", "run", "steps=2")


def test_a_run_continues_the_training_of_an_adapter_folder(home: Path, adapter_run: Path):
    start = home / "start"
    shutil.copytree(checkpoint(adapter_run), start)
    settings = ("model=start", "train.objective.beta=0.1", "optim.lr=1e-2", "steps=2", "eval.every=0")
    said = outdo_(home, "train", "recipe.toml", "run=./further", "--verbose", *settings)
    assert f"model start: an adapter of {home / 'model'}; only the adapter is trained" in said
    assert "training the adapter start (4,096 weights) of model by grpo " in said
    assert timeless(home / "further")[0]["kl"] == 0  # the reference is the adapter that it started from
    assert timeless(home / "further")[-1]["kl"] > 0
    assert weights(home / "further") != weights(adapter_run)
    said = outdo_(home, "train", "recipe.toml", "model=start", ADAPTER, status=2)
    assert "train.adapter: start is an adapter, which is trained further without this setting" in said


@pytest.mark.release
def test_the_other_commands_take_an_adapter_folder_as_a_model(home: Path, adapter_run: Path, tmp_path: Path):
    folder = tmp_path / "adapter"
    shutil.copytree(checkpoint(adapter_run), folder)
    of_run = json.loads(outdo_(home, "eval", "adapter", "--json", "--k", "2").splitlines()[-1])
    settings = ("--rewards", "score.py:score", "--max-tokens", "8", "--k", "2", "--data", "held_out.jsonl")
    of_folder = json.loads(outdo_(home, "eval", folder, "--json", *settings).splitlines()[-1])
    of_base = json.loads(outdo_(home, "eval", "model", "--json", *settings).splitlines()[-1])
    assert of_folder["reward"] == of_run["reward"] != of_base["reward"]
    (tmp_path / "examples.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n' * 4)
    tuned = ("--out", tmp_path / "tuned", "--steps", "2", "--lr", "0.01")
    outdo_(home, "sft", folder, "--data", tmp_path / "examples.jsonl", *tuned)
    assert (tmp_path / "tuned/adapter_model.safetensors").is_file()
    assert not (tmp_path / "tuned/model.safetensors").exists()
    first, last = (f"step_{step:06d}" for step in (saved(adapter_run)[0], saved(adapter_run)[-1]))
    page = tmp_path / "page.html"
    outdo_(home, "inspect", "adapter", "--compare", first, last, "--out", page)
    assert last in page.read_text()


def test_an_adapter_that_does_not_fit_is_refused_before_a_model_is_loaded(home: Path):
    settings = 'train.adapter={name = "lora", targets = ["foo"]}'
    said = " ".join(outdo_(home, "train", "recipe.toml", "run=./wrong", settings, status=2).split())
    assert "train.adapter: the adapter does not fit the model: Target modules {'foo'} not found in the base" in said
    assert not (home / "wrong").exists()


def test_an_exported_adapter_is_that_of_the_run_and_a_merged_one_a_plain_model(home: Path, adapter_run: Path):
    said = outdo_(home, "export", "adapter", "exported-adapter")
    assert "is now in exported" in said
    assert weights_hash(home / "exported-adapter") == weights(adapter_run)
    assert "An adapter (PEFT), trained from `model`" in (home / "exported-adapter/README.md").read_text()
    said = outdo_(home, "export", "exported-adapter", "merged", "--merge")
    difference = re.search(r"in float64 on 8 fixed sequences of 64 tokens: (\S+) nats", said)
    assert difference is not None
    assert float(difference[1]) < 1e-5
    assert weights_hash(home / "merged") != weights_hash(home / "model")
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        expected = Policy.load(checkpoint(adapter_run)).model(input_ids=ids).logits
        found = AutoModelForCausalLM.from_pretrained(home / "merged")(input_ids=ids).logits
    assert (found - expected).abs().max() < 1e-4


def test_what_cannot_be_exported_is_a_sentence(home: Path, adapter_run: Path, tmp_path: Path):
    folder = tmp_path / "adapter"
    shutil.copytree(checkpoint(adapter_run), folder)
    for arguments, sentence in (
        ((folder, tmp_path / "new"), "not a run folder; --merge makes a whole model of an adapter"),
        (("adapter", tmp_path / "new", "--dtype", "bfloat16"), "an adapter is exported in float32; with --merge"),
        (("model", tmp_path / "new", "--merge"), "--merge: model has no adapter"),
        (("adapter", folder, "--merge"), "exists and is not empty; choose a new folder"),
    ):
        assert sentence in outdo_(home, "export", *arguments, status=2)
    assert not (tmp_path / "new").exists()
