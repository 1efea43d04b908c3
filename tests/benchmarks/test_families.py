"""The table of families: what it says is what was measured, and the fast ones stay fast."""

import pytest

from benchmarks.families import BEGIN, PAGE, is_fast, measured, page, read_rows

FAST = ("qwen3", "gpt_oss", "qwen3_5_text", "kimi_linear", "gemma3_text", "mistral", "ministral3", "smollm3", "llama")


def test_the_page_is_what_the_rows_say():
    assert PAGE.read_text("utf-8").partition(BEGIN)[2] == f"\n{page(read_rows().values())}"


@pytest.mark.release
@pytest.mark.parametrize("family", FAST)
def test_a_family_keeps_the_fast_ways(family: str):
    row = measured(family)
    assert is_fast(row), row
    assert row["lora"] == ""
