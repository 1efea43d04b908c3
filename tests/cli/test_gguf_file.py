"""A run, and every command that takes a model, with a GGUF file; what is saved is a model folder like any other."""

import hashlib
import io
import json
from pathlib import Path

import pytest
import torch
from command_cases import SMALL, outdo_process
from gguf_cases import Q8_0, write_gguf
from transformers import AutoModelForCausalLM

REAL = ("steps=1", "train.prompts=2", "train.group_size=4", "sampling.max_tokens=16", "rewards=last_number")


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", type=Q8_0)
    return tmp_path / "tiny.gguf"


def test_a_run_is_checked_by_the_header_then_trained_saved_and_resumed(file, gsm8k, tmp_path):
    run = tmp_path / "run"
    settings = (f"model={file}", f"data.path={gsm8k / 'train.jsonl'}", "data.eval_rows=3", *SMALL, f"run={run}")
    note = f"model {file}: its weights are dequantised from Q8_0 to float32, once, into a folder in {tmp_path}/cache/"
    checked = outdo_process("check", *settings)
    assert checked.status == 0, checked.error
    assert note in checked.out
    assert not list((tmp_path / "cache" / "outdo" / "gguf").glob("*/model.safetensors"))  # the tokenizer alone
    trained = outdo_process("train", *settings, "steps=1")
    assert trained.status == 0, trained.error
    assert note in trained.out
    revisions = json.loads((run / "environment.json").read_text())["revisions"]
    assert revisions == {str(file): hashlib.sha256(file.read_bytes()).hexdigest()}
    file.unlink()  # a checkpoint holds all weights
    resumed = outdo_process("resume", run, "steps=2")
    assert resumed.status == 0, resumed.error
    checkpoint = run / "checkpoints" / "step_000002"
    assert (checkpoint / "model.safetensors").is_file()
    assert AutoModelForCausalLM.from_pretrained(checkpoint).config.model_type == "llama"


def test_commands_that_take_a_model_take_the_file(file, gsm8k, tmp_path):
    prompts, questions = tmp_path / "prompts.jsonl", gsm8k / "train.jsonl"
    prompts.write_text(json.dumps({"prompt": "hello"}) + "\n")
    limits = ("--max-tokens", "4")
    for command in (
        ("eval", file, "--data", questions, "--rewards", "last_number", "--limit", "2", *limits),
        ("generate", file, "--data", prompts, "--out", tmp_path / "answers.jsonl", *limits),
        ("plan", "--model", file),
    ):
        done = outdo_process(*command)
        assert done.status == 0, done.error + done.out


def test_it_is_fine_tuned_through_a_link_and_the_adapter_finds_its_base_again(file, outdo, tmp_path, monkeypatch):
    """In the cache of the Hub a file is a link to one that is named after its hash, without an ending."""
    link, blob, data, out = (tmp_path / name for name in ("linked.gguf", "0123abcd", "data.jsonl", "adapter"))
    file.rename(blob)
    link.symlink_to(blob)
    data.write_text('{"prompt": "hello", "answer": "there"}\n')
    steps = ("--steps", "1", "--batch", "1", "--device", "cpu")
    tuned = outdo("sft", link, "--data", data, "--out", out, "--adapter", "lora", *steps)
    assert tuned.status == 0, tuned.error
    assert f"model {link}: its weights are dequantised from Q8_0 to float32" in tuned.out
    assert json.loads((out / "base.json").read_text())["name"] == str(link)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n"))
    spoken = outdo("chat", out, "--max-tokens", "4", "--device", "cpu")
    assert spoken.status == 0, spoken.error
    merged = outdo("export", out, tmp_path / "merged", "--merge")
    assert merged.status == 0, merged.error
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged").config.model_type == "llama"


def test_a_reward_model_is_made_of_it_and_it_is_none_itself(file, outdo, gsm8k, tmp_path):
    data, out = tmp_path / "pairs.jsonl", tmp_path / "reward"
    data.write_text("".join(json.dumps({"prompt": each, "chosen": "a", "rejected": "b"}) + "\n" for each in "12"))
    steps = ("--steps", "1", "--batch", "1", "--device", "cpu")
    done = outdo("reward-model", file, "--data", data, "--out", out, *steps)
    assert done.status == 0, done.error
    assert f"model {file}: its weights are dequantised from Q8_0 to float32" in done.out
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForSequenceClassification"]
    rewards = f"rewards={{name='reward_model', path='{file}'}}"
    refused = outdo("check", f"model={file}", rewards, f"data.path={gsm8k / 'train.jsonl'}", "device=cpu")
    assert refused.status == 2
    assert f"model {file}: LlamaForCausalLM is no reward model; `outdo reward-model` makes a" in refused.out


def test_reference_and_critic_are_files_and_the_exported_model_is_in_float32(file, outdo, sums, tmp_path):
    run, models = tmp_path / "run", [tmp_path / name for name in ("reference.gguf", "critic.gguf")]
    for each in models:
        each.write_bytes(file.read_bytes())
    of_method = ("train.objective={name='ppo', beta=0.01}", "train.advantage=gae", f"reference.model={models[0]}")
    critic = f"train.critic={{name='model', path='{models[1]}'}}"
    settings = (f"model={file}", f"data.path={sums}", *SMALL, *of_method, critic, f"run={run}", "steps=1")
    done = outdo("train", *settings)
    assert done.status == 0, done.error
    revisions = json.loads((run / "environment.json").read_text())["revisions"]
    assert revisions == dict.fromkeys(map(str, [file, *models]), hashlib.sha256(file.read_bytes()).hexdigest())
    assert outdo("export", run, tmp_path / "exported").status == 0
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype="auto").state_dict()
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_the_real_model_is_trained_from_its_file(smollm2_gguf, smollm2, gsm8k, tmp_path):
    run = tmp_path / "run"
    data = (f"data.path={gsm8k / 'train.jsonl'}", "data.eval_rows=2", "eval.rows=2", "device=cpu")
    done = outdo_process("train", f"model={smollm2_gguf}", *data, *REAL, f"run={run}")
    assert done.status == 0, done.error
    assert "its weights are dequantised from Q4_1 to float32" in done.out
    trained = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step_000001").state_dict()
    before = AutoModelForCausalLM.from_pretrained(smollm2).state_dict()
    assert trained.keys() == before.keys()
    assert max((trained[name] - weight).abs().max() for name, weight in before.items()) < 1e-3
    assert all(weight.dtype == torch.float32 for weight in trained.values())
