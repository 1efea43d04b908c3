"""The table of families: what it says is what was measured, and the fast ones stay fast."""

from pathlib import Path

import pytest
from compared_families import columns_of

from benchmarks.families import BEGIN, PAGE, all_rows, is_fast, measured, page, read_rows
from benchmarks.family_models import small

TRAINED = (
    *("qwen3", "qwen3_5_text", "gemma3_text", "gemma4_text", "gpt_oss", "lfm2_moe", "kimi_linear"),
    *("llama", "mistral", "glm4_moe", "nemotron_h", "olmo3", "deepseek_v3"),
)
"""Families that many train, with every kind of layer and of expert among them."""

EQUAL = {"replicas": "", "divided": ""}
"""The columns of a family whose update is that of one process."""

OTHERS = sorted({row["family"] for row in all_rows() if is_fast(row)} - {*TRAINED})


def test_the_page_is_what_the_rows_say():
    assert PAGE.read_text("utf-8").partition(BEGIN)[2] == f"\n{page(read_rows().values())}"


@pytest.mark.parametrize("family", [*TRAINED, *(pytest.param(name, marks=pytest.mark.release) for name in OTHERS)])
def test_a_family_keeps_the_fast_ways(family: str):
    row = measured(family)
    assert is_fast(row), row
    assert row["lora"] == next(row["lora"] for row in all_rows() if row["family"] == family)


def test_a_family_that_reads_what_comes_later_is_refused_in_a_sentence():
    assert measured("xlnet")["error"].startswith("is refused: XLNetLMHeadModel: no way to sample")


@pytest.mark.release
def test_two_replicas_compute_the_update_of_one_process(tmp_path: Path):
    families = ("qwen3", "nemotron_h", "deepseek_v3", "kimi_linear", "zamba")
    assert columns_of(families, tmp_path) == dict.fromkeys(families, EQUAL)


@pytest.mark.release
def test_an_update_of_replicas_that_differs_is_told(tmp_path: Path):
    columns = columns_of(["qwen3"], tmp_path, "adds nothing up")["qwen3"]
    assert columns["replicas"].startswith("its gradient differs by ")
    assert columns["divided"] == ""


@pytest.mark.release
def test_replicas_that_end_are_told_and_the_next_family_is_compared(tmp_path: Path):
    ended = dict.fromkeys(EQUAL, "one of the replicas ends, or waits for the other one")
    assert columns_of(["lfm2", "qwen3"], tmp_path, "lfm2") == {"lfm2": ended, "qwen3": EQUAL}


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("deepseek_v3", {"DeepseekV3MLP", "DeepseekV3MoE"}),
        ("lfm2_moe", {"Lfm2MoeMLP", "Lfm2MoeSparseMoeBlock", "Lfm2MoeShortConv", "Lfm2MoeAttention"}),
        ("gemma3n_text", {"Gemma3nTextAltUp"}),
    ],
)
def test_a_small_model_has_each_kind_of_layer(family: str, kinds: set[str]):
    assert kinds <= {type(module).__name__ for module in small(family).modules()}
