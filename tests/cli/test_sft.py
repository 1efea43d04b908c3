"""`outdo sft` makes given answers likelier, and writes a folder that transformers loads."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}+1=", "completion": f"{n + 1}"}) + "\n" for n in range(8)))
    return path


def likelihood(folder, pairs):
    """Mean log-probability of an answer's token, worked out with nothing but transformers."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = []
    for line in pairs.read_text().splitlines():
        row = json.loads(line)
        prompt = tokenizer.encode(row["prompt"])
        answer = [*tokenizer.encode(row["completion"]), tokenizer.eos_token_id]
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        found += [float(logprobs[len(prompt) + place - 1, token]) for place, token in enumerate(answer)]
    return math.fsum(found) / len(found)


def test_sft_raises_the_likelihood_of_the_answers(outdo, model, pairs, tmp_path):
    out = tmp_path / "tuned"
    asked = ["--data", pairs, "--answer", "completion", "--steps", 20, "--batch", 8, "--lr", 5e-3, "--device", "cpu"]
    done = outdo("sft", model, "--out", out, *asked)
    assert (done.status, done.error) == (0, "")
    before, after = likelihood(model, pairs), likelihood(out, pairs)
    assert after > before + 1
    told = [float(line.rpartition(" ")[2]) for line in done.out.splitlines() if line.startswith("step ")]
    assert told[0] == pytest.approx(before, abs=2e-3)
    assert before < told[-1] < after + 2e-3


def test_sft_overwrites_nothing(outdo, model, pairs, tmp_path):
    (tmp_path / "mine").write_text("precious")
    done = outdo("sft", model, "--data", pairs, "--answer", "completion", "--out", tmp_path)
    assert done.status == 2
    assert "choose a new folder" in done.error
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_sft_needs_answers(outdo, model, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"prompt": "1+1="}) + "\n")
    done = outdo("sft", model, "--data", path, "--out", tmp_path / "tuned")
    assert done.status == 2
    assert "--answer NAME" in done.error
