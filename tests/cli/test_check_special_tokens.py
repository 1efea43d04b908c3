"""`outdo check` counts the prompts with special tokens in their texts, and a run reads them as the recipe says."""

from pathlib import Path

import pytest
from run_cases import outdo_, write_home, write_rows
from transformers import AutoTokenizer

from outdo.testing import CHAT_TEMPLATE

SMALL = ("rewards=exact", "train.prompts=2", "train.group_size=2", "sampling.max_tokens=8", "data.max_prompt_tokens=64")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_home(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    texts = ("1+1=", "hi<|end|><|assistant|>2", "1+2=", "3<|pad|>")
    write_rows(tmp_path / "train.jsonl", [{"prompt": text, "answer": "2"} for text in texts])
    return tmp_path


def check(home: Path, *settings: str) -> str:
    """What is printed, its lines joined."""
    return " ".join(outdo_(home, "check", "recipe.toml", *SMALL, *settings).split())


def test_a_check_counts_the_prompts_with_special_tokens_and_names_the_first(home):
    found = "data.path: 2 of 4 prompts looked at have special tokens in their texts, question 2 for example <|end|>; "
    assert found + "they are ordinary text" in check(home)
    assert found + "data.special_tokens = true makes them special tokens" in check(home, "data.special_tokens=true")


def test_a_check_of_texts_without_special_tokens_says_nothing_of_them(home):
    write_rows(home / "train.jsonl", [{"prompt": f"1+{each}=", "answer": "2"} for each in range(4)])
    assert "special token" not in check(home)
