"""Options of a chat template are its defaults from then on, wherever it is rendered."""

import pytest
from transformers import AutoTokenizer

from outdo.models.chat_options import set_chat_options
from outdo.models.template_header import without_header
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import ModelError

MESSAGES = [{"role": "user", "content": "Hi"}]
TEMPLATES = [
    "{% for m in messages %}{{ m.content }}{{ mode }}{% if thinking %}<think>{% endif %}{% endfor %}",
    "\n{%- for m in messages %}\n  {{ m.content }}\n{% endfor %}\n{{ mode }}{{ thinking }}",
    "  {% if thinking %}on{% else %}off{% endif %}\n\n{{ mode }}{{ messages[0].content }}",
    "\n\n{{ messages[0].content }}{{ mode }}{% set thinking = not thinking %}{{ thinking }}",
]
OPTIONS = {"thinking": False, "mode": 'a"b\\ü\n%}{{', "budget": 7}


@pytest.fixture
def tokenizer():
    return byte_bpe_tokenizer([], 264, chat=True)


def rendered(tokenizer, **options):
    return tokenizer.apply_chat_template(MESSAGES, tokenize=False, **options)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_writes_what_it_writes_with_the_options_as_arguments(tokenizer, template, tmp_path):
    tokenizer.chat_template = template
    expected = {thinking: rendered(tokenizer, **OPTIONS | {"thinking": thinking}) for thinking in (False, True)}
    assert expected[False] != expected[True]
    set_chat_options(tokenizer, OPTIONS)
    assert rendered(tokenizer) == expected[False]
    assert rendered(tokenizer, thinking=True) == expected[True]  # the caller decides
    tokenizer.save_pretrained(tmp_path)
    assert rendered(AutoTokenizer.from_pretrained(tmp_path)) == expected[False]
    assert without_header(tokenizer.chat_template) == template

    set_chat_options(tokenizer, OPTIONS | {"thinking": True})  # replaces the earlier ones
    assert rendered(tokenizer) == expected[True]
    assert without_header(tokenizer.chat_template) == template
    before = tokenizer.chat_template
    set_chat_options(tokenizer, {})
    assert tokenizer.chat_template == before


def test_a_model_without_a_chat_template_has_no_options():
    plain = byte_bpe_tokenizer([], 264)
    with pytest.raises(ModelError, match="no chat template"):
        set_chat_options(plain, {"thinking": True})
