"""Every setting of another library has an effect or a remark, and no value of it ends in a traceback or in no TOML."""

import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from odd_values import ODD

from outdo.config.file import RecipeError, load
from outdo.extras.convert.account import converted, same_setting, table_of
from outdo.extras.convert.conversion import Conversion
from outdo.extras.convert.openrlhf import convert_openrlhf
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.verl import ACTOR, LOSS, MODEL, convert_verl
from outdo.extras.convert.written import written_recipe
from outdo.utils.text import dotted

CONVERTERS = {"trl": convert_trl, "verl": convert_verl, "openrlhf": convert_openrlhf}
NEEDED: dict[str, dict[str, Any]] = {
    "trl": {"model_name_or_path": "m", "dataset_name": "x.jsonl", "reward_funcs": ["accuracy_reward"]},
    "verl": {
        f"{MODEL}.path": "m",
        "data.train_files": "gsm8k/x.parquet",
        "data.train_batch_size": 256,
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.n": 4,
    },
    "openrlhf": {
        "pretrain": "m",
        "prompt_data": "x.jsonl",
        "reward_pretrain": "rm",
        "advantage_estimator": "group_norm",
        "n_samples_per_prompt": 4,
    },
}
BRANCHES: dict[str, list[dict[str, Any]]] = {  # settings that give others a meaning
    "trl": [
        {},
        {"use_vllm": True, "use_adaptive_entropy": True, "beta": 0.1, "sync_ref_model": True, "use_peft": True},
        {"reward_funcs": ["accuracy_reward", "think_format_reward"], "loss_type": "sapo"},
        {"dataset_name": "openai/gsm8k", "eval_strategy": "steps", "loss_type": "vespo"},
    ],
    "verl": [
        {},
        {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive", f"{MODEL}.lora_rank": 8},
        {"algorithm.filter_groups.enable": True, f"{LOSS}.loss_mode": "clip_cov", f"{MODEL}.lora.rank": 4},
        {"algorithm.rollout_correction.rollout_is": "token", f"{LOSS}.loss_mode": "kl_cov"},
        {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.optim.lr_scheduler_type": "cosine", f"{LOSS}.loss_mode": "sapo"},
        {"algorithm.adv_estimator": "gae", "data.val_files": "y.parquet"},
        {
            "algorithm.rollout_correction.bypass_mode": True,
            "algorithm.rollout_correction.rollout_rs": "token_k1,seq_mean_k3",
            "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2.0,0.1",
        },
    ],
    "openrlhf": [
        {},
        {"kl_target": 0.1, "dynamic_filtering": True, "lora_rank": 8, "overlong_buffer_len": 64, "use_wandb": "key"},
        {"advantage_estimator": "gae"},
        {
            "eval_dataset": "y.jsonl",
            "eval_steps": 5,
            "enable_vllm_is_correction": True,
            "prompt_data": "x.jsonl,y.jsonl",
            "prompt_data_probs": "0.5,0.5",
        },
        {
            "use_kl_loss": True,
            "loss_agg_mode": "seq-mean-token-mean",
            "is_correction_level": "token",
            "param_dtype": "fp16",
        },
    ],
}


@pytest.mark.parametrize("library", CONVERTERS)
def test_every_setting_has_an_effect_or_a_remark_and_an_odd_value_is_a_mistake_or_a_recipe(
    library: str, tmp_path: Path
) -> None:
    table, convert = table_of(library), CONVERTERS[library]
    plain = [convert(NEEDED[library] | branch, rows=20_000) for branch in BRANCHES[library]]
    settings = [*dict(dotted(table["defaults"])), *table.get("others", "").split()]
    further = ["train_dataset", "eval_dataset", "tools", "peft_config", "datasets"] if library == "trl" else []
    for name in dict.fromkeys([*settings, *table["numbers"].split(), *further]):
        has_effect = name not in settings
        values = ODD if decides(name, plain) else ODD[2:7]
        for value, (branch, before) in product(values, zip(BRANCHES[library], plain, strict=True)):
            if branch and has_effect:
                continue
            conversion = convert(NEEDED[library] | branch | {name: value}, rows=20_000)
            if not conversion.mistakes:
                tomllib.loads(written_recipe(conversion, "Converted."))
                changed = said(conversion) != said(before)
                assert len(conversion.account) == len(NEEDED[library] | branch | {name: value}), name
                is_told = bool(conversion.incomplete) or loads(conversion, tmp_path / "recipe.toml")
                has_effect = has_effect or (changed and is_told)
        assert has_effect, name


def decides(name: str, conversions: list[Conversion]) -> bool:
    """Return whether a rule reads a setting; a few values do for one that none reads."""
    library, defaults = conversions[0].library, conversions[0].given.defaults
    read = any(name in conversion.given.read for conversion in conversions)
    return read or name in defaults or same_setting(name, library) is not None


def said(conversion: Conversion) -> Any:
    return conversion.settings, conversion.remarks, conversion.asides


def loads(conversion: Conversion, path: Path) -> bool:
    path.write_text(written_recipe(conversion, "Converted."), encoding="utf-8")
    try:
        load(path)
    except RecipeError:  # an odd value may be no value of outdo's
        return False
    return True


def test_each_of_two_settings_without_effect_is_said():
    def reads_both(conversion):
        conversion.settings["steps"] = 1 + 0 * (conversion.given["seed"] + conversion.given["beta"])

    conversion = converted("TRL", {"seed": 1, "beta": 0.5}, (reads_both,))
    assert conversion.remarks == [
        "seed = 1: changes nothing beside the other settings",
        "beta = 0.5: changes nothing beside the other settings",
    ]
