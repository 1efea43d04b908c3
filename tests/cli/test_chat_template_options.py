"""`data.template = {enable_thinking = false}` holds for training, evaluation, the chat and the exported model."""

import json
import shutil

import pytest
from command_cases import SMALL
from transformers import AutoTokenizer

from outdo.extras.record import parquet
from outdo.models.completion_text import completion_text

TEMPLATE = (
    "{% set opening = '@' if enable_thinking is not defined or enable_thinking else '!' %}"
    "{% for message in messages %}<|{{ message.role }}|>{% if message.role == 'assistant' %}{{ opening }}{% endif %}"
    "{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ opening }}{% endif %}"
)
OFF = "data.template={enable_thinking=false}"


@pytest.fixture(scope="module")
def thinking_model(chat_model, tmp_path_factory):
    """A model whose chat template opens every answer with an @, or with an ! if `enable_thinking` is false."""
    folder = tmp_path_factory.mktemp("models") / "thinking"
    shutil.copytree(chat_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def opening(folder, **options):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "1+1="}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)[-1]


def test_the_option_holds_from_the_training_to_the_exported_model(outdo, thinking_model, sums, tmp_path, monkeypatch):
    run, exported = tmp_path / "run", tmp_path / "exported"
    settings = (f"model={thinking_model}", f"data.path={sums}", "data.eval_rows=4", f"run={run}", *SMALL[1:])
    done = outdo("train", *settings, OFF, "steps=1")
    assert done.status == 0, done.error
    assert all(prompt.endswith("!") for prompt in parquet.read(run, 1).column("prompt").to_pylist())
    assert outdo("export", run, exported).status == 0
    assert (opening(thinking_model), opening(exported), opening(exported, enable_thinking=True)) == ("@", "!", "@")
    card = (exported / "README.md").read_text()
    assert "The chat template has the defaults of the training: `enable_thinking = false`." in card
    assert "template = {enable_thinking = false}" in card

    asked = []

    def evaluate(engine, environment, prompts, *_, **__):
        asked.append([completion_text(engine.tokenizer, prompt.token_ids) for prompt in prompts])
        raise SystemExit(0)

    monkeypatch.setattr("outdo.cli.evaluate.evaluate", evaluate)
    for arguments, end in (
        ((run,), "!"),
        ((thinking_model, "--data", sums), "@"),
        ((thinking_model, "--data", sums, "--template", "{enable_thinking = false}"), "!"),
        ((run, "--template", "{enable_thinking = true}"), "@"),
    ):
        outdo("eval", *arguments)
        assert all(prompt.rstrip().endswith(end) for prompt in asked.pop()), arguments
    told = outdo("eval", run, "--template", "{messages = 1}").error
    assert 'eval: --template: expected options of the chat template such as enable_thinking, not "messages"' in told


def test_check_shows_the_prompt_and_warns_of_an_unknown_option(outdo, thinking_model, model, sums):
    data = f"data.path={sums}"
    shown = outdo("check", f"model={thinking_model}", data, OFF, *SMALL)
    assert shown.status == 0, shown.error
    assert "<|assistant|>!" in shown.out
    assert "does not know the option" not in shown.out
    unknown = outdo("check", f"model={thinking_model}", data, "data.template.enable_thought=true", *SMALL)
    assert (
        "data.template.enable_thought: the model's chat template does not know the option enable_thought" in unknown.out
    )
    none = outdo("check", f"model={model}", data, OFF, *SMALL)
    assert none.status != 0
    assert "so that it has no options; for text write a string" in " ".join((none.out + none.error).split())
    wrong = outdo("check", f"model={thinking_model}", data, "data.template={messages=1}", *SMALL)
    assert 'expected options of the chat template such as enable_thinking, not "messages"' in wrong.error


@pytest.mark.parametrize("command", ["sft", "reward-model"])
def test_the_option_holds_for_what_sft_and_reward_model_train_and_write(
    outdo, command, thinking_model, model, tmp_path
):
    rows = [{"prompt": f"{n}?", "chosen": "2", "rejected": "3"} for n in range(9)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = ("--data", tmp_path / "pairs.jsonl", "--steps", 1, "--device", "cpu", "--out", tmp_path / "trained")
    none = outdo(command, model, *how, "--template", "{enable_thinking = false}")
    assert none.status == 2
    assert f"--template: {model} has no chat template, so that it has no options" in none.error
    assert 'such as enable_thinking, not "messages"' in outdo(command, model, *how, "--template", "{messages=1}").error

    done = outdo(command, thinking_model, *how, "--template", "{enable_thinking = false, thoughts = 3}")
    assert done.status == 0, done.error
    assert "?<|end|><|assistant|>!" in done.out
    assert f"note: --template: the chat template of {thinking_model} does not know the option thoughts" in done.out
    assert "know the option enable_thinking" not in done.out
    assert (opening(tmp_path / "trained"), opening(tmp_path / "trained", enable_thinking=True)) == ("!", "@")
