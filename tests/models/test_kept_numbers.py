"""What the layers of a model keep of a sequence, counted from its configuration, and by sampling."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.families import all_rows, is_fast
from benchmarks.family_models import small
from outdo.extras.plan.shapes import shape_of
from outdo.models.choose_forward import choose_forward
from outdo.models.config_sizes import sizes_of
from outdo.models.inspect_folder import is_whole
from outdo.rollouts.fast.kv_cache import Prefill
from outdo.rollouts.fast.layer_caches import KeysValues
from outdo.testing import byte_bpe_tokenizer

TOKENS = 7

MANY = (
    *("qwen3", "lfm2", "lfm3", "qwen3_5_text", "nemotron_h", "kimi_linear", "bailing_hybrid", "granitemoehybrid"),
    *("deepseek_v3", "glm4_moe_lite", "gemma4_text", "gemma3n_text", "mimo_v2_flash", "zamba2", "falcon_h1", "mamba2"),
)
OTHER_SIZES = {"gpt_bigcode", "hrm_text", "jetmoe"}
"""Families whose small models have sizes that contradict each other, or (JetMoE) whose experts attend."""
OTHERS = sorted({row["family"] for row in all_rows() if is_fast(row)} - {*MANY} - OTHER_SIZES)


@pytest.mark.parametrize("family", [*MANY, *(pytest.param(name, marks=pytest.mark.release) for name in OTHERS)])
def test_the_check_counts_what_the_layers_of_a_family_keep_of_a_sequence(family: str):
    model = small(family)
    config = json.loads(model.config.to_json_string(use_diff=False))
    sizes = sizes_of(config | (config.get("text_config", {}) if is_whole(config) else {}), [])
    layout = Prefill([TOKENS])
    with torch.no_grad():
        choose_forward(model).flat(torch.arange(5, 5 + TOKENS), torch.arange(TOKENS), layout)  # type: ignore[attr-defined]
    (kept,) = layout.states
    keys_values = [tensor for state in kept if isinstance(state, KeysValues) for tensor in state]
    states = [tensor for state in kept if not isinstance(state, KeysValues) for tensor in state]
    assert sizes["kv_numbers"] * TOKENS == sum(tensor.numel() for tensor in keys_values)
    assert sizes["state_numbers"] == sum(tensor.numel() for tensor in states)


@pytest.mark.parametrize(
    ("family", "attending"), [("mamba", 0), ("falcon_mamba", 0), ("jamba", 1), ("zamba", 2), ("recurrent_gemma", 0)]
)
def test_layers_that_do_not_attend_keep_no_keys_and_values_in_slower_families_too(family: str, attending: int):
    config = json.loads(small(family).config.to_json_string(use_diff=False))
    sizes = sizes_of(config, [])
    of_one = 2 * sizes["kv_heads"] * (config.get("attention_head_dim") or sizes["head_dim"]) if attending else 0
    assert sizes["attention_layers"] == attending
    assert sizes["kv_numbers"] == attending * of_one


def test_an_engine_keeps_the_latent_vector_of_a_token(tmp_path: Path):
    small("deepseek_v3").save_pretrained(tmp_path)
    byte_bpe_tokenizer([]).save_pretrained(tmp_path)
    shape, _ = shape_of(str(tmp_path))
    assert shape.cached == 16 + 8  # kv_lora_rank, qk_rope_head_dim
    assert shape.kv_heads == 1
