"""What outdo reads from the configurations of all families, at the sizes that their classes have by default."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.families import NO_TEXT
from outdo.models.config_sizes import sizes_of
from outdo.models.inspect_folder import is_whole
from outdo.models.loading import max_context
from outdo.models.windows import windows_of

ABSENT = {
    **{name: {"heads"} for name in ("falcon_mamba", "mamba", "rwkv")},  # nothing attends
    "blt": {"hidden_size", "layers", "heads"},  # each of its parts has sizes of its own
}
WITHOUT_LIMIT = {
    *("bloom", "cpmant", "xlnet"),  # positions are distances
    *("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "xlstm"),
}

FAMILIES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*NO_TEXT})


def default_config(family: str) -> PretrainedConfig:
    return CONFIG_MAPPING[family]()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_and_its_check_read_positive_sizes_of_every_family(family: str):
    config, problems = default_config(family), list[str]()
    stored: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    sizes = sizes_of(stored | (stored.get("text_config", {}) if is_whole(stored) else {}), problems)
    model: Any = SimpleNamespace(config=config)
    assert problems == []
    assert sizes["max_positions"] == max_context(model)
    assert (sizes["max_positions"] is None) == (family in WITHOUT_LIMIT)
    absent = {name for name in ("hidden_size", "layers", "heads", "vocab_size") if sizes[name] is None}
    assert absent == ABSENT.get(family, set())
    assert all(width > 0 for width in windows_of(model).values())
