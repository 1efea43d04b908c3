"""A run, and every command that takes a model, with a GGUF file; what is saved is a model folder like any other."""

import hashlib
import io
import json
from pathlib import Path

import pytest
import torch
from command_cases import SMALL
from gguf_cases import Q8_0, write_gguf
from transformers import AutoModelForCausalLM

STEP = ("--steps", "1", "--batch", "1", "--device", "cpu")


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", type=Q8_0)
    return tmp_path / "tiny.gguf"


def test_policy_reference_and_critic_are_files_and_the_run_is_checked_saved_resumed_and_exported(
    file, outdo, sums, tmp_path
):
    run, models = tmp_path / "run", [tmp_path / name for name in ("reference.gguf", "critic.gguf")]
    for each in models:
        each.write_bytes(file.read_bytes())
    of_method = ("train.objective={name='ppo', beta=0.01}", "train.advantage=gae", f"reference.model={models[0]}")
    critic = f"train.critic={{name='model', path='{models[1]}'}}"
    settings = (f"model={file}", f"data.path={sums}", *SMALL, *of_method, critic, f"run={run}", "steps=1")
    note = f"model {file}: its weights are dequantised from Q8_0 to float32, once, into a folder in {tmp_path}/cache/"
    checked = outdo("check", *settings)
    assert checked.status == 0, checked.error
    assert note in checked.out
    assert not list((tmp_path / "cache" / "outdo" / "gguf").glob("*/model.safetensors"))  # the tokenizer alone
    trained = outdo("train", *settings, "--verbose")
    assert trained.status == 0, trained.error
    assert note in trained.out
    revisions = json.loads((run / "environment.json").read_text())["revisions"]
    assert revisions == dict.fromkeys(map(str, [file, *models]), hashlib.sha256(file.read_bytes()).hexdigest())
    assert outdo("export", run, tmp_path / "exported").status == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype="auto")
    assert exported.config.model_type == "llama"
    assert {weight.dtype for weight in exported.state_dict().values()} == {torch.float32}
    file.unlink()  # a checkpoint holds all weights
    resumed = outdo("resume", run, "steps=2")
    assert resumed.status == 0, resumed.error
    assert (run / "checkpoints" / "step_000002" / "model.safetensors").is_file()


def test_commands_that_take_a_model_take_the_file(file, outdo, sums, tmp_path):
    limits = ("--limit", "2", "--max-tokens", "4")
    for command in (
        ("eval", file, "--data", sums, "--rewards", "last_number", *limits),
        ("generate", file, "--data", sums, "--out", tmp_path / "answers.jsonl", *limits),
        ("plan", "--model", file),
    ):
        done = outdo(*command)
        assert done.status == 0, done.error + done.out


def test_it_is_fine_tuned_through_a_link_and_the_adapter_finds_its_base_again(file, outdo, sums, tmp_path, monkeypatch):
    """In the cache of the Hub a file is a link to one that is named after its hash, without an ending."""
    link, blob, out = (tmp_path / name for name in ("linked.gguf", "0123abcd", "adapter"))
    file.rename(blob)
    link.symlink_to(blob)
    tuned = outdo("sft", link, "--data", sums, "--out", out, "--adapter", "lora", *STEP)
    assert tuned.status == 0, tuned.error
    assert f"model {link}: its weights are dequantised from Q8_0 to float32" in tuned.out
    assert json.loads((out / "base.json").read_text())["name"] == str(link)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n"))
    spoken = outdo("chat", out, "--max-tokens", "4", "--device", "cpu")
    assert spoken.status == 0, spoken.error
    merged = outdo("export", out, tmp_path / "merged", "--merge")
    assert merged.status == 0, merged.error
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged").config.model_type == "llama"


def test_a_reward_model_is_made_of_it_and_it_is_none_itself(file, outdo, sums, tmp_path):
    data, out = tmp_path / "pairs.jsonl", tmp_path / "reward"
    data.write_text("".join(json.dumps({"prompt": each, "chosen": "a", "rejected": "b"}) + "\n" for each in "12"))
    done = outdo("reward-model", file, "--data", data, "--out", out, *STEP)
    assert done.status == 0, done.error
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForSequenceClassification"]
    rewards = f"rewards={{name='reward_model', path='{file}'}}"
    refused = outdo("check", f"model={file}", rewards, f"data.path={sums}", "device=cpu")
    assert refused.status == 2
    assert f"model {file}: LlamaForCausalLM is no reward model; `outdo reward-model` makes a" in refused.out
