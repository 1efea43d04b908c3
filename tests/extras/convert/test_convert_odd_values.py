"""No value of a setting of another library ends in a traceback, or in a recipe that is not TOML."""

import math
import tomllib
from typing import Any

import pytest

from outdo.extras.convert.conversion import table_of, written_recipe
from outdo.extras.convert.openrlhf import convert_openrlhf
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.verl import convert_verl
from outdo.utils.text import dotted

ODD: tuple[Any, ...] = (
    None,
    "",
    "x",
    'a"\n\\',
    True,
    0,
    -1,
    10**30,
    1e-300,
    math.inf,
    math.nan,
    [],
    [1, "a"],
    {"a": 1},
)
CONVERTERS = {"trl": convert_trl, "verl": convert_verl, "openrlhf": convert_openrlhf}
BRANCHES: dict[str, list[dict[str, Any]]] = {  # settings that give others a meaning
    "trl": [
        {},
        {"use_vllm": True, "use_adaptive_entropy": True, "beta": 0.1, "sync_ref_model": True, "use_peft": True},
    ],
    "verl": [
        {},
        {
            "algorithm.use_kl_in_reward": True,
            "algorithm.kl_ctrl.type": "adaptive",
            "actor_rollout_ref.model.lora_rank": 8,
        },
        {"algorithm.filter_groups.enable": True, "algorithm.adv_estimator": "grpo"},
    ],
    "openrlhf": [{}, {"kl_target": 0.1, "dynamic_filtering": True, "lora_rank": 8, "overlong_buffer_len": 64}],
}


@pytest.mark.parametrize("library", CONVERTERS)
def test_an_odd_value_is_a_mistake_or_a_recipe(library: str) -> None:
    table = table_of(library)
    further = ["train_dataset", "eval_dataset", "tools", "peft_config", "datasets"] if library == "trl" else []
    for name in [*dict(dotted(table["defaults"])), *table["numbers"].split(), *further]:
        for value in ODD:
            for branch in BRANCHES[library]:
                conversion = CONVERTERS[library](branch | {name: value}, rows=1000)
                if not conversion.mistakes and branch == {}:
                    tomllib.loads(written_recipe(conversion, "Converted."))
