"""Questions that a model's tokenizer or context has trouble with, in a run."""

import json
import shutil

from command_cases import SMALL, chain_model
from transformers import AutoTokenizer

CONTEXT = 512


def settings(model, data, run, *more):
    return [f"model={model}", f"data.path={data}", f"run={run}", *SMALL, *more]


def questions(path, *texts):
    path.write_text("".join(json.dumps({"question": text, "answer": "1"}) + "\n" for text in texts))
    return path


def test_a_chat_template_that_refuses_a_question_names_its_row(outdo, chat_model, tmp_path):
    picky = shutil.copytree(chat_model, tmp_path / "picky")
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    refuses = "{% if '3' in messages[-1].content %}{{ raise_exception('no threes') }}{% endif %}"
    tokenizer.chat_template = refuses + tokenizer.chat_template
    tokenizer.save_pretrained(picky)
    data = questions(tmp_path / "data.jsonl", "1+3=", "1+1=")
    done = outdo("train", *settings(picky, data, tmp_path / "run"))
    assert done.status == 2
    assert "no threes" in done.error + done.out
    assert "question 1" in done.error + done.out
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_prompts_that_are_too_long_are_left_out_and_counted_or_refused_if_that_is_asked_for_or_none_is_left(
    outdo, model, tmp_path
):
    data = questions(tmp_path / "data.jsonl", "1+0=", "x " * 300, "1+1=", "y " * 300)
    limit = "data.max_prompt_tokens=20"
    refused = outdo("train", *settings(model, data, tmp_path / "run", limit, "data.overlong=refuse"))
    assert refused.status == 2
    assert [f"question {row}: its prompt has" in refused.error for row in (1, 2, 3, 4)] == [False, True, False, True]
    none_left = outdo(
        "train", *settings(model, questions(tmp_path / "long.jsonl", "x " * 300), tmp_path / "run", limit)
    )
    assert none_left.status == 2
    assert "question 1: its prompt has" in none_left.error
    done = outdo("train", *settings(model, data, tmp_path / "run", limit, "steps=1"))
    assert done.status == 0, done.error
    assert "left out: 2 of 4 training questions, longer than 20 tokens" in done.out


def test_an_answer_ends_where_the_models_context_does(outdo, tmp_path):
    endless = chain_model(tmp_path / "model", "12", after="=", ends=False)
    data = questions(tmp_path / "data.jsonl", "x" * (CONTEXT - 5) + "=", "y" * (CONTEXT - 5) + "=")
    asked = ["data.max_prompt_tokens=600", "sampling.max_tokens=50", "steps=1"]
    done = outdo("train", *settings(endless, data, tmp_path / "run", *asked))
    assert done.status == 0, done.error
    assert f"more than the model's context of {CONTEXT}" in done.out
    assert "an answer ends at the end of the context" in done.out
    step = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert step["completions/max_length"] == 4
    assert step["completions/clipped_ratio"] == 1.0
