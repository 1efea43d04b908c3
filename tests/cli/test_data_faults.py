"""Questions that a model's tokenizer or context has trouble with, in a run."""

import json

import pytest
from command_cases import SMALL, chain_model
from transformers import AutoTokenizer

from outdo.models.loading import load_tokenizer
from outdo.models.policy import Policy
from outdo.models.prompt_encoding import encode_prompt
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import tiny_model
from outdo.types import FinishReason, Request
from outdo.utils.rng import Stream

CONTEXT = 512


def settings(model, data, run, *more):
    return [f"model={model}", f"data.path={data}", f"run={run}", *SMALL, *more]


def questions(path, *texts):
    path.write_text("".join(json.dumps({"question": text, "answer": "1"}) + "\n" for text in texts))
    return path


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def picky(chat_model, tmp_path):
    """A chat model whose template refuses a question with a 3 in it."""
    folder = tmp_path / "picky"
    folder.mkdir()
    for path in chat_model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    refuses = "{% if '3' in messages[-1].content %}{{ raise_exception('no threes') }}{% endif %}"
    tokenizer.chat_template = refuses + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_chat_template_that_refuses_a_question_names_its_row(outdo, picky, tmp_path, command):
    data = questions(tmp_path / "data.jsonl", "1+3=", "1+1=")
    done = outdo(command, *settings(picky, data, tmp_path / "run"))
    assert done.status == 2
    assert "no threes" in done.error + done.out
    assert "question 1" in done.error + done.out
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_tokenizer_that_adds_a_bos_adds_one_and_a_template_that_writes_it_gets_no_second(tmp_path):
    from tokenizers.processors import TemplateProcessing

    _, tokenizer = tiny_model(tmp_path / "model")
    tokenizer.add_special_tokens({"bos_token": "<|system|>"})
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|system|> $A", special_tokens=[("<|system|>", bos)]
    )
    tokenizer.save_pretrained(tmp_path / "model")
    plain = load_tokenizer(tmp_path / "model")
    assert encode_prompt(plain, "1+1=").count(bos) == 1
    plain.chat_template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    assert encode_prompt(plain, "1+1=").count(bos) == 1


def test_prompts_that_are_too_long_are_left_out_and_counted(outdo, model, tmp_path):
    data = questions(tmp_path / "data.jsonl", "1+0=", "x " * 300, "1+1=", "y " * 300)
    done = outdo("train", *settings(model, data, tmp_path / "run", "data.max_prompt_tokens=20"))
    assert done.status == 0, done.error
    assert "2 of 4 training questions are longer than 20 tokens and left out" in done.out


def test_prompts_that_are_too_long_are_refused_if_that_is_asked_for(outdo, model, tmp_path):
    data = questions(tmp_path / "data.jsonl", "1+0=", "x " * 300, "1+1=", "y " * 300)
    asked = ["data.max_prompt_tokens=20", "data.overlong=refuse"]
    done = outdo("train", *settings(model, data, tmp_path / "run", *asked))
    assert done.status == 2
    assert [f"question {row}: its prompt has" in done.error for row in (1, 2, 3, 4)] == [False, True, False, True]


def test_a_file_of_nothing_but_long_prompts_is_refused(outdo, model, tmp_path):
    data = questions(tmp_path / "data.jsonl", "x " * 300)
    done = outdo("train", *settings(model, data, tmp_path / "run", "data.max_prompt_tokens=20"))
    assert done.status == 2
    assert "question 1: its prompt has" in done.error


def test_an_answer_ends_where_the_models_context_does(outdo, tmp_path):
    endless = chain_model(tmp_path / "model", "12", after="=", ends=False)
    data = questions(tmp_path / "data.jsonl", "x" * (CONTEXT - 5) + "=", "y" * (CONTEXT - 5) + "=")
    asked = ["data.max_prompt_tokens=600", "sampling.max_tokens=50", "steps=1"]
    done = outdo("train", *settings(endless, data, tmp_path / "run", *asked))
    assert done.status == 0, done.error
    assert f"more than the model's context of {CONTEXT}" in done.out
    assert "an answer ends at the end of the context" in done.out
    (step,) = metrics(tmp_path / "run")
    assert step["completions/max_length"] == 4
    assert step["completions/clipped_ratio"] == 1.0


def test_the_engine_stops_at_the_context_with_the_reason_length(tmp_path):
    policy = Policy.load(chain_model(tmp_path / "model", "12", after="=", ends=False), device="cpu")
    ids = tuple(encode_prompt(policy.tokenizer, "x" * (CONTEXT - 4) + "="))
    request = Request(token_ids=ids, stream=Stream("test", 0, "0", 0), max_tokens=50)
    (completion,) = BuiltinEngine(policy).generate([request], SamplingParams(max_tokens=50))
    assert (len(completion.token_ids), completion.finish_reason) == (CONTEXT - len(ids), FinishReason.length)
