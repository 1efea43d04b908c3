"""What `outdo check` warns of in questions and chat templates, from files alone."""

import json

import pytest
from run_cases import write_home

from outdo.config.file import load
from outdo.run.check.preflight import check


@pytest.fixture
def warnings(tmp_path, monkeypatch):
    """The warnings of a check in a home with these questions and files of the tokenizer."""
    write_home(tmp_path)
    monkeypatch.chdir(tmp_path)

    def warnings_of(*overrides, questions=(), **files):
        if questions:
            rows = [{"prompt": each, "answer": "1"} for each in questions]
            (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, content in files.items():
            path = tmp_path / "model" / f"{name}.json"
            known = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(known | content))
        report = check(load("recipe.toml", ["rewards=exact", *overrides]))
        assert report.errors == []
        return report.warnings

    return warnings_of


def test_repeated_questions_and_held_out_ones_that_are_trained_on_are_counted(warnings):
    found = warnings(questions=["1+1=", "2+5=", "1 + 1", "2+5=", "2+5= "])
    assert "data.path: 2 of 5 questions repeat another one: question 4 is question 2" in found
    assert "1 of 4 held-out questions are also trained on" in found
    assert not [each for each in warnings(questions=["1+1=", "2+2="]) if "repeat" in each or "trained on" in each]


def test_a_chat_template_is_compared_with_the_recipe_and_with_the_end_of_an_answer(warnings):
    fits = {"chat_template": "{{ messages[0].content }}<|end|>"}
    assert not [each for each in warnings(tokenizer_config=fits) if "template" in each]
    replaced = warnings("data.template=Q: {prompt}", tokenizer_config=fits)
    assert any(each.startswith("data.template: replaces the model's own chat template") for each in replaced)
    base = {"chat_template": "{{ messages[0].content }}<|im_end|>"}
    (found,) = [each for each in warnings(tokenizer_config=base) if "template" in each]
    assert "its chat template never writes its end-of-sequence token <|end|>" in found
    assert not [each for each in warnings("sampling.stop=['<|im_end|>']", tokenizer_config=base) if "template" in each]
    random = warnings(tokenizer_config={"chat_template": "{{ messages | random }}<|end|>"})
    assert "model: its chat template draws at random, so that prompts and runs cannot be repeated" in random
    several = warnings(tokenizer_config=base, generation_config={"eos_token_id": [1, 2]})
    assert not [each for each in several if "template" in each]
    plain = warnings("data.template=Q: {prompt}", tokenizer_config={"chat_template": None})
    assert not [each for each in plain if "template" in each]
