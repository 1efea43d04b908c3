"""A configuration of TRL becomes a recipe that loads, trains with the same numbers, and names what it leaves out."""

import dataclasses
import inspect
from pathlib import Path

import pytest
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments
from trl.scripts.grpo import GRPOScriptArguments
from trl.scripts.utils import DatasetMixtureConfig

from outdo.config.file import load, read_tables
from outdo.extras.convert.conversion import same_setting, table_of, written_recipe
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.trl_objective import CLIPPED

TABLE = table_of("trl")
DEFAULTS, OTHERS = TABLE["defaults"], TABLE["others"].split()
CONFIGURATIONS = (GRPOConfig, ModelConfig, ScriptArguments, GRPOScriptArguments, DatasetMixtureConfig)
NEEDED = {"model_name_or_path": "m", "dataset_name": "x.jsonl"}

WITH = {  # another value of a setting, and what it needs to have a meaning
    "accelerator_config": {"accelerator_config": {"split_batches": False}},
    "activation_checkpointing": {"activation_checkpointing": False},
    "beta": {"beta": 0.04},
    "dataset_config": {"dataset_config": "main", "dataset_name": "openai/gsm8k"},
    "dataset_name": {"dataset_name": "openai/gsm8k"},
    "dataset_test_split": {"dataset_test_split": "held", "dataset_name": "openai/gsm8k", "eval_strategy": "steps"},
    "dataset_train_split": {"dataset_train_split": "all", "dataset_name": "openai/gsm8k"},
    "datasets": {"datasets": [{"path": "a/b", "split": "train"}, {"path": "c/d", "name": "main"}]},
    "delta": {"delta": 4.0},
    "dtype": {"dtype": "bfloat16"},
    "epsilon_high": {"epsilon_high": 0.28},
    "eval_steps": {"eval_steps": 20, "eval_strategy": "steps"},
    "eval_strategy": {"eval_strategy": "epoch"},
    "generation_batch_size": {"generation_batch_size": 32, "per_device_train_batch_size": 16},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 4},
    "importance_sampling_level": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    "load_in_4bit": {"load_in_4bit": True, "use_peft": True},
    "load_in_8bit": {"load_in_8bit": True, "use_peft": True},
    "loss_type": {"loss_type": "grpo"},
    "lr_scheduler_type": {"lr_scheduler_type": "cosine"},
    "lora_target_modules": {"lora_target_modules": ["q_proj"], "use_peft": True},
    "lora_modules_to_save": {"lora_modules_to_save": ["lm_head"], "use_peft": True},
    "lora_target_parameters": {"lora_target_parameters": ["experts.up"], "use_peft": True},
    "mask_truncated_completions": {"mask_truncated_completions": True},
    "min_p": {"min_p": 0.1},
    "multi_objective_aggregation": {"multi_objective_aggregation": "normalize_then_sum"},
    "num_generations": {"num_generations": 4},
    "num_train_epochs": {"num_train_epochs": 2.0},
    "max_steps": {"max_steps": 50},
    "per_device_train_batch_size": {"per_device_train_batch_size": 64},
    "ref_model_mixup_alpha": {"ref_model_mixup_alpha": 0.5, "sync_ref_model": True, "beta": 0.1},
    "ref_model_sync_steps": {"ref_model_sync_steps": 10, "sync_ref_model": True, "beta": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "report_to": {"report_to": ["wandb", "tensorboard"]},
    "reward_funcs": {"reward_funcs": ["think_format_reward", "get_soft_overlong_punishment"]},
    "reward_weights": {"reward_weights": [1.0, 0.5], "reward_funcs": ["accuracy_reward", "think_format_reward"]},
    "save_strategy": {"save_strategy": "no"},
    "scale_rewards": {"scale_rewards": False},
    "shuffle_dataset": {"shuffle_dataset": False},
    "steps_per_generation": {"steps_per_generation": 2, "per_device_train_batch_size": 16},
    "sync_ref_model": {"sync_ref_model": True, "beta": 0.1},
    "top_entropy_quantile": {"top_entropy_quantile": 0.2},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.9},
    "use_bias_correction_kl": {"use_bias_correction_kl": False, "beta": 0.1},
    "use_rslora": {"use_rslora": True, "use_peft": True},
    "use_dora": {"use_dora": True, "use_peft": True},
    "vllm_importance_sampling_mode": {"vllm_importance_sampling_mode": "token_truncate", "use_vllm": True},
    "warmup_steps": {"warmup_steps": 5},
    "weight_decay": {"weight_decay": 0.1},
}
WITH |= {name: {name: 8, "use_peft": True} for name in ("lora_r", "lora_alpha")}
WITH |= {"lora_dropout": {"lora_dropout": 0.1, "use_peft": True}}
WITH |= {name: {name: 0.5, "use_adaptive_entropy": True} for name in DEFAULTS if name.startswith("entropy_")}
WITH |= {"entropy_coef": {"entropy_coef": 0.01}, "entropy_coef_min": {"entropy_coef_min": 0.0}}
WITH |= {name: {name: 1.5, "loss_type": "sapo"} for name in DEFAULTS if name.startswith("sapo_")}
WITH |= {name: {name: 1.5, "loss_type": "vespo"} for name in DEFAULTS if name.startswith("vespo_")}
WITH |= {
    name: {name: value, "use_vllm": True}
    for name, value in (
        ("vllm_importance_sampling_correction", False),
        ("vllm_importance_sampling_clip_max", 2.0),
        ("vllm_importance_sampling_clip_min", 0.5),
        ("vllm_importance_sampling_cap", 2.0),
    )
}


def sample(name):
    """Another value of a setting than the default."""
    default = DEFAULTS.get(name)
    if name in TABLE["numbers"].split():
        return 1
    if isinstance(default, bool):
        return not default
    return default / 2 if isinstance(default, float) else 2 * default if isinstance(default, int) else "other"


def recipe_of(conversion, folder):
    assert conversion.mistakes == []
    path = folder / "recipe.toml"
    path.write_text(written_recipe(conversion, "Converted."), encoding="utf-8")
    return load(path)


@pytest.fixture(scope="module")
def fields():
    return {field.name: field for each in CONFIGURATIONS for field in dataclasses.fields(each)}


def test_the_table_has_the_settings_of_trl_with_their_defaults(fields):
    assert set(DEFAULTS) | set(OTHERS) == set(fields)
    assert not set(DEFAULTS) & set(OTHERS)
    for name, default in DEFAULTS.items():
        assert fields[name].default == default, name


@pytest.mark.parametrize("name", [*DEFAULTS, *OTHERS])
def test_no_setting_of_trl_is_left_out_without_a_word(name, tmp_path):
    written = NEEDED | WITH.get(name, {name: sample(name)})
    default = {each: value for each, value in written.items() if each != name or name in NEEDED}
    if name in NEEDED:
        default = NEEDED | {name: "another"}
    conversion, plain = convert_trl(written), convert_trl(default)
    recipe_of(conversion, tmp_path)
    changed = conversion.settings != plain.settings or conversion.remarks != plain.remarks
    without_effect = written[name] in (DEFAULTS.get(name), plain.settings.get(same_setting(name, "TRL") or ""))
    assert changed or without_effect, name


def test_a_default_of_trl_that_is_not_the_one_of_outdo_is_written(tmp_path):
    recipe = recipe_of(convert_trl(NEEDED), tmp_path)
    assert recipe.train.objective.model_dump() == {"name": "dapo", "clip_low": 0.2, "clip_high": 0.2}
    assert recipe.train.advantage.name == "group_standardised"
    assert recipe.train.compat == "trl"
    assert (recipe.train.prompts, recipe.train.group_size, recipe.train.minibatches) == (1, 8, 1)
    assert recipe.sampling.max_tokens == 512
    assert recipe.optim.schedule.name == "linear"
    assert recipe.train.gradient_checkpointing
    assert recipe.seed == 42
    assert recipe.data.overlong == "refuse"


def test_a_batch_is_counted_in_questions_and_optimiser_steps(tmp_path):
    written = NEEDED | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "num_generations": 16}
    written |= {"steps_per_generation": 32, "num_iterations": 2, "max_steps": 96, "save_steps": 48}
    recipe = recipe_of(convert_trl(written, processes=2), tmp_path)
    train = recipe.train
    assert (train.prompts, train.group_size, train.minibatches, train.passes) == (16, 16, 4, 2)
    assert recipe.steps == 12  # of eight optimiser steps
    assert recipe.checkpoint.every == 6


def test_epochs_become_steps_if_the_number_of_questions_is_given(tmp_path):
    written = NEEDED | {"per_device_train_batch_size": 64, "num_train_epochs": 2, "warmup_steps": 0.1}
    recipe = recipe_of(convert_trl(written, rows=1000), tmp_path)
    assert recipe.steps == 2 * 125
    assert recipe.optim.schedule.options["warmup"] == 25
    conversion = convert_trl(written)
    assert "steps" not in conversion.settings
    assert any(remark.startswith("num_train_epochs = 2") for remark in conversion.remarks)
    assert any(remark.startswith("warmup_steps = 0.1") for remark in conversion.remarks)


def test_yaml_numbers_that_are_texts_are_numbers(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model_name_or_path: m\ndataset_name: x.jsonl\nlearning_rate: 2e-6\nbeta: 1e-3\n", encoding="utf-8")
    recipe = recipe_of(convert_trl(read_tables(path)), tmp_path)
    assert recipe.optim.lr == 2e-6
    assert recipe.train.objective.options == {"clip_low": 0.2, "clip_high": 0.2, "beta": 1e-3, "kl_ratio": True}


def test_all_mistakes_are_reported_at_once_with_the_nearest_name():
    conversion = convert_trl(NEEDED | {"num_generatons": 8, "epsilon_hgh": 0.3, "scale_rewards": "std", "tau": 1})
    assert conversion.mistakes == [
        "scale_rewards = std: expected group, batch or none",
        "num_generatons: TRL has no such setting; did you mean num_generations?",
        "epsilon_hgh: TRL has no such setting; did you mean epsilon_high?",
    ]
    assert "tau = 1: neither TRL nor outdo has this setting, as far as outdo knows" in conversion.remarks


def test_a_value_of_another_kind_is_a_mistake_and_no_traceback():
    written = {"learning_rate": "high", "use_vllm": 3, "epsilon_high": [1], "loss_type": 1, "num_generations": 2.5}
    assert convert_trl(written).mistakes == [
        'learning_rate: expected a number, found "high"',
        "use_vllm: expected true or false, found 3",
        "epsilon_high: expected a number, found [1]",
        "loss_type: expected text, found 1",
        "num_generations: expected a number, found 2.5",
    ]


def test_a_group_that_does_not_fit_into_the_batch_is_a_mistake():
    (mistake,) = convert_trl(NEEDED | {"num_generations": 6}).mistakes
    assert mistake.startswith("num_generations = 6: the 8 answers of a batch have to be a multiple of it")


def test_what_trl_does_in_cispo_with_its_own_bound_is_told(tmp_path):
    conversion = convert_trl(NEEDED | {"loss_type": "cispo"})
    assert recipe_of(conversion, tmp_path).train.objective.options == {"ratio_max": 5.0}
    assert any("would multiply every gradient by 0.2" in remark for remark in conversion.remarks)


@pytest.mark.parametrize("kind", [*CLIPPED, "cispo", "sapo", "vespo"])
@pytest.mark.parametrize("more", [{}, {"beta": 0.04}, {"use_vllm": True}, {"importance_sampling_level": "sequence"}])
def test_every_loss_of_trl_loads(kind, more, tmp_path):
    assert recipe_of(convert_trl(NEEDED | {"loss_type": kind} | more), tmp_path).train.objective.name == kind


def test_the_arguments_of_the_trainer_are_converted_or_reported():
    from outdo.extras.convert.trl_script import BY_ITSELF, CONVERTED

    assert {*CONVERTED, *BY_ITSELF} <= set(inspect.signature(GRPOTrainer).parameters)


def test_remarks_are_comments_of_the_recipe(tmp_path):
    conversion = convert_trl(NEEDED | {"repetition_penalty": 1.1, "logging_steps": 3})
    recipe_of(conversion, tmp_path)
    text = Path(tmp_path / "recipe.toml").read_text(encoding="utf-8")
    for remark in conversion.remarks:
        assert remark.split(":")[0] in text
    assert all(len(line) <= 120 for line in text.splitlines())
