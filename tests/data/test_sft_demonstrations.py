"""The demonstrations of a run are encoded as `outdo sft` encodes answers, behind the prompt that the policy reads."""

from types import SimpleNamespace
from typing import Any

import pytest

from outdo.config.file import load
from outdo.extras.sft.demonstrations import demonstrations_of
from outdo.models.prompt_encoding import encode_prompt
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Prompt
from outdo.utils.errors import ModelError

NEEDED = ("model=x", "data.path=x.jsonl", "rewards=exact", "train.objective=gkd", "teachers=x")


def encoded(answer: object, tokenizer: Any, *settings: str, system: str | None = None) -> tuple[Any, list[int]]:
    """The demonstration of a question, and the tokens of its prompt."""
    recipe = load(None, [*NEEDED, "data.demonstrations=solution", *settings])
    policy: Any = SimpleNamespace(tokenizer=tokenizer, end_ids=frozenset({tokenizer.eos_token_id}))
    template = recipe.data.prompt_template
    ids = encode_prompt(tokenizer, "2+2=", template=template, system=system)
    prompt = Prompt(id="7", text="2+2=", token_ids=tuple(ids), columns={"solution": answer})
    return demonstrations_of(recipe, policy)(prompt), ids


def test_a_text_follows_the_prompt_and_ends_as_an_answer_does():
    tokenizer = byte_bpe_tokenizer([])
    for settings in ((), ('data.template="Q: {prompt} A:"',)):
        answer, _ = encoded("it is 4", tokenizer, *settings)
        assert tokenizer.decode(answer[:-1]) == "it is 4"
        assert answer[-1] == tokenizer.eos_token_id
    number, _ = encoded(4, tokenizer)
    assert tokenizer.decode(number[:-1]) == "4"


def test_with_a_chat_template_it_is_what_follows_the_prompt_in_the_conversation():
    tokenizer = byte_bpe_tokenizer([], chat=True)
    for system in (None, "Be short."):
        settings = () if system is None else (f"data.system={system}",)
        answer, prompt = encoded("it is 4", tokenizer, *settings, system=system)
        messages = [{"role": "user", "content": "2+2="}, {"role": "assistant", "content": "it is 4"}]
        messages = messages if system is None else [{"role": "system", "content": system}, *messages]
        whole = str(tokenizer.apply_chat_template(messages, tokenize=False))
        assert whole.startswith(str(tokenizer.decode([*prompt, *answer])))
        assert str(tokenizer.decode(answer)).startswith("it is 4")
        assert answer[-1] == tokenizer.eos_token_id


def test_a_special_token_in_it_is_text():
    tokenizer = byte_bpe_tokenizer([], chat=True)
    answer, _ = encoded(f"a{tokenizer.eos_token}b", tokenizer)
    assert answer.count(tokenizer.eos_token_id) == 1


def test_a_row_without_one_has_none():
    for nothing in (None, ""):
        assert encoded(nothing, byte_bpe_tokenizer([]))[0] is None


def test_a_template_that_writes_another_prompt_when_the_answer_follows_is_refused():
    tokenizer = byte_bpe_tokenizer([], chat=True)
    tokenizer.chat_template = (
        "{% if messages[-1].role == 'assistant' %}answered {% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    with pytest.raises(ModelError, match="question 7"):
        encoded("it is 4", tokenizer)
