"""`outdo check` compares what rewards look for with the tokens of the model."""

import json
from pathlib import Path

import pytest

from outdo.config.file import load
from outdo.run.check.reward_reading import lost_texts
from outdo.testing import CHAT_TEMPLATE, byte_bpe_tokenizer, tiny_model


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """A model whose chat template opens <think>, which is a special token; </answer> ends its answers."""
    model, tokenizer = tiny_model()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"], "eos_token": "</answer>"})
    tokenizer.chat_template = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|><think>\n")
    model.resize_token_embeddings(len(tokenizer))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "thinker")
    return tmp_path / "thinker"


def test_check_shows_what_prompts_open_and_what_no_reward_can_read(outdo, thinker: Path, tmp_path: Path):
    data, code = tmp_path / "q.jsonl", tmp_path / "mine.py"
    data.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": f"{n}"}) + "\n" for n in range(3)))
    code.write_text('def score(completion, answer):\n    return answer in completion.partition("<|user|>")[0]\n')
    rewards = f'rewards=["last_number","format","{code}:score"]'
    shown = outdo("check", f"model={thinker}", f"data.path={data}", rewards, "eval.right=last_number").out
    text = " ".join(shown.split())
    assert r"prompts: 3 of 3 looked at have the beginning of the answer, '<think>\n' in question 1" in text
    assert "rewards.format: no answer can earn it: a completion has '' in place of </answer>" in text
    assert "rewards.last_number: </answer> ends or frames messages here, so that no completion has it" in text
    assert f"rewards: {code}:score names <|user|>, which frames messages, so that no completion has it" in text
    assert "<|user|>0?<|end|><|assistant|><think>" in text


def test_a_model_whose_completions_have_all_tags_gets_no_warning():
    recipe = load(None, ["model=m", "data.path=d", 'rewards=["format","exact","math"]'])
    tokenizer = byte_bpe_tokenizer([], chat=True)
    assert list(lost_texts(recipe, tokenizer)) == []
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "<answer>", "</answer>"]})
    assert list(lost_texts(recipe, tokenizer)) == []
