"""`outdo sft` makes given answers likelier, and writes a folder that transformers loads."""

import json
import math
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase


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
    told = [-float(loss) for loss in re.findall(r"^step .*loss ([\d.]+)", done.out, re.MULTILINE)]
    assert told[0] == pytest.approx(before, abs=2e-3)
    assert before < told[-1] < after + 2e-3


CONVERSATION = [
    {"role": role, "content": text}
    for role, text in (("user", "1+1="), ("assistant", "2"), ("user", "2+2="), ("assistant", "4"))
]


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sft_names_the_format_and_shows_what_it_learns_of_the_first_example(outdo, chat_model, tmp_path):
    data = rows_file(tmp_path / "chats.jsonl", [{"messages": CONVERSATION}])
    asked = ["--data", data, "--steps", 2, "--batch", 1, "--lr", 1e-3, "--device", "cpu"]
    done = outdo("sft", chat_model, "--out", tmp_path / "tuned", *asked)
    assert (done.status, done.error) == (0, "")
    assert f"{data}: 1 example; format: language modeling (conversational); learned: the assistant's" in done.out
    shown = "<|user|>1+1=<|end|><|assistant|>»2<|end|>«<|user|>2+2=<|end|><|assistant|>»4<|end|>«"
    assert shown in done.out.splitlines()


def test_sft_learns_the_turns_of_the_assistant_and_no_others(outdo, chat_model, tmp_path):
    data = rows_file(tmp_path / "chats.jsonl", [{"messages": CONVERSATION}])
    done = outdo("sft", chat_model, "--data", data, "--out", tmp_path / "tuned", "--steps", 1, "--device", "cpu")
    assert done.status == 0, done.error
    model, tokenizer = AutoModelForCausalLM.from_pretrained(chat_model), AutoTokenizer.from_pretrained(chat_model)
    parts = ["<|user|>1+1=<|end|><|assistant|>", "2<|end|>", "<|user|>2+2=<|end|><|assistant|>", "4<|end|>"]
    ids = [tokenizer.encode(part) for part in parts]
    row = [token for part in ids for token in part]
    with torch.no_grad():
        logprobs = model(torch.tensor([row])).logits[0].log_softmax(-1)
    starts = [len(ids[0]), len(ids[0]) + len(ids[1]) + len(ids[2])]
    places = [start + at for start, part in zip(starts, (ids[1], ids[3]), strict=True) for at in range(len(part))]
    expected = math.fsum(float(logprobs[place - 1, row[place]]) for place in places) / len(places)
    (told,) = re.findall(r"^step 1/1  loss ([\d.]+)", done.out, re.MULTILINE)
    assert -float(told) == pytest.approx(expected, abs=2e-3)


def test_sft_mixes_files_by_their_weights(outdo, model, tmp_path):
    files = [rows_file(tmp_path / f"{name}.jsonl", [{"prompt": name, "completion": "1"}] * 3) for name in "ab"]
    data = [part for file in files for part in ("--data", file)]
    how = ["--steps", 1, "--batch", 4, "--device", "cpu", "--out", tmp_path / "tuned"]
    assert outdo("sft", model, *data, "--weight", 3, "--weight", 1, *how).status == 0
    refused = outdo("sft", model, *data, "--weight", 3, *how[:-1], tmp_path / "other")
    assert refused.status == 2
    assert "--weight: expected one for each --data, 2, or none; found 1" in refused.error


def test_sft_reports_all_mistakes_at_once_before_the_model_is_loaded(outdo, model, tmp_path, monkeypatch):
    monkeypatch.setattr("outdo.extras.sft.command.Policy", None)
    data = rows_file(tmp_path / "chats.jsonl", [{"messages": CONVERSATION[:1]}])
    questions = rows_file(tmp_path / "questions.jsonl", [{"prompt": "1+1="}])
    several = [part for each in (data, "nowhere.jsonl", questions) for part in ("--data", each)]
    done = outdo("sft", tmp_path / "modle", *several, "--out", tmp_path)
    assert done.status == 2
    for mistake in (
        "choose a new folder",
        "no folder 'modle'",
        'row 1: column "messages" has no answer',
        "no such file",
        "--answer NAME",
    ):
        assert mistake in done.error
    assert {path.name for path in tmp_path.iterdir()} == {"chats.jsonl", "questions.jsonl"}


def test_examples_that_do_not_fit_into_the_model_are_left_out_and_counted(outdo, model, tmp_path):
    rows = [{"prompt": "1+1=", "completion": "2" * (900 if number == 3 else 1)} for number in range(6)]
    data = rows_file(tmp_path / "pairs.jsonl", rows)
    done = outdo("sft", model, "--data", data, "--out", tmp_path / "tuned", "--steps", 1, "--device", "cpu")
    assert "left out: 1 of 6 examples, longer than the model's context of 512 tokens" in done.out


@pytest.mark.parametrize("command", ["sft", "reward-model"])
def test_a_model_that_cannot_be_written_leaves_no_folder(command, outdo, model, tmp_path, monkeypatch):
    data = rows_file(tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "chosen": "2", "rejected": "3"} for n in range(9)])
    written = []

    def fail(tokenizer, folder, **_):
        written.extend(path.name for path in folder.iterdir())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", fail)
    how = ["--data", data, "--steps", 1, "--device", "cpu", "--out", tmp_path / "tuned"]
    done = outdo(command, model, *how)
    assert (done.status, "model.safetensors" in written) == (1, True)
    assert f"{tmp_path / 'tuned'}: cannot be written: No space left on device" in done.error
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl"}  # and no steps that nobody could continue
    monkeypatch.undo()
    assert outdo(command, model, *how).status == 0
    AutoTokenizer.from_pretrained(tmp_path / "tuned")
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "tuned"}


def test_an_adapter_is_fine_tuned_beside_the_model(outdo, model, pairs, tmp_path):
    settings = ["--lr", 0.01, "--steps", 20, "--batch", 4, "--device", "cpu", "--adapter", "{name = 'lora', rank = 4}"]
    settings += ["--base-weights", "nf4"]
    assert outdo("sft", model, "--data", pairs, "--out", tmp_path / "tuned", *settings).status == 0
    assert sorted(path.name for path in (tmp_path / "tuned").glob("*.safetensors")) == ["adapter_model.safetensors"]
    assert likelihood(tmp_path / "tuned", pairs) > likelihood(model, pairs) + 0.5
