"""A date that is kept in a chat template: it is what `strftime_now` writes, wherever the template calls it."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from outdo.models.chat_options import keep_date, set_chat_options
from outdo.models.template_header import date_of, with_date, without_header
from outdo.testing import byte_bpe_tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}]
DATE = "2024-07-04T09:05:03"
PARTS = ["%d", "%b", "%Y", "%B", "%-d", "%H:%M:%S", "%j", "%%", "%%d", "100%", " ", "d", "%A", "%y", "%x", "%f", "\\"]


def rendered(template: str, **options: str) -> str:
    tokenizer = byte_bpe_tokenizer([], 264, chat=True)
    tokenizer.chat_template = template
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, **options)
    assert isinstance(text, str)
    return text


@given(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.datetimes(datetime(1971, 1, 1)))
def test_every_format_is_that_of_strftime(form: str, moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    dated = with_date("{{ strftime_now(form) }}", moment.isoformat())
    assert rendered(dated, form=form) == moment.strftime(form)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (  # as Llama 3.2's
            "{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n        "
            '{%- set date_string = strftime_now("%d %b %Y") %}\n    {%- else %}\n        '
            '{%- set date_string = "26 Jul 2024" %}\n    {%- endif %}\n{%- endif %}\n{{- "Today: " + date_string }}',
            "Today: 04 Jul 2024",
        ),
        (  # as gpt-oss's: in a macro
            "{%- macro system() -%}\n  {{- 'Current date: ' + strftime_now('%Y-%m-%d') + '\\n' }}\n{%- endmacro -%}\n"
            "{{- system() }}",
            "Current date: 2024-07-04\n",
        ),
        (  # as Mistral Small's: computed with
            "{%- set today = strftime_now('%Y-%m-%d') %}{%- set year = strftime_now('%Y') | int - 1 %}"
            "{{ today }} {{ year }}{% for m in messages %}{% generation %}{{ strftime_now('%d') }}{% endgeneration %}"
            "{% endfor %}",
            "2024-07-04 202304",
        ),
    ],
)
def test_the_date_stands_wherever_a_template_writes_it(template: str, expected: str, tmp_path) -> None:
    tokenizer = byte_bpe_tokenizer([], 264, chat=True)
    tokenizer.chat_template = template
    assert keep_date(tokenizer, DATE) == DATE
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.apply_chat_template(MESSAGES, tokenize=False) == expected
    assert keep_date(loaded, "2030-01-01") is None  # it keeps one
    set_chat_options(loaded, {"other": 1})
    assert loaded.apply_chat_template(MESSAGES, tokenize=False) == expected
    set_chat_options(loaded, {"strftime_now": "2030-01-01"})
    assert date_of(loaded.chat_template) == "2030-01-01"
    assert "2030" in loaded.apply_chat_template(MESSAGES, tokenize=False)
    assert without_header(loaded.chat_template) == template


def test_a_template_without_a_date_is_unchanged() -> None:
    tokenizer = byte_bpe_tokenizer([], 264, chat=True)
    before = tokenizer.chat_template
    assert (keep_date(tokenizer, DATE), tokenizer.chat_template) == (None, before)
    tokenizer.chat_template = {"default": "{{ strftime_now('%Y') }}", "tools": "{{ messages }}"}  # by their names
    assert keep_date(tokenizer, DATE) == DATE
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == "2024"
