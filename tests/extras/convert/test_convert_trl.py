"""A configuration of TRL becomes a recipe that loads, trains with the same numbers, and names what it leaves out."""

import dataclasses

import pytest
from trl import GRPOConfig, ModelConfig, ScriptArguments
from trl.scripts.grpo import GRPOScriptArguments
from trl.scripts.utils import DatasetMixtureConfig

from outdo.config.file import load, read_tables
from outdo.extras.convert.account import table_of
from outdo.extras.convert.reading import with_code
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.trl_objective import CLIPPED
from outdo.extras.convert.written import written_recipe
from outdo.rewards import RewardInput, load_reward

TABLE = table_of("trl")
DEFAULTS, OTHERS = TABLE["defaults"], TABLE["others"].split()
CONFIGURATIONS = (GRPOConfig, ModelConfig, ScriptArguments, GRPOScriptArguments, DatasetMixtureConfig)
NEEDED = {"model_name_or_path": "m", "dataset_name": "x.jsonl", "reward_funcs": ["accuracy_reward"]}


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
    assert recipe.checkpoint.every.steps == 6


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
    text = "model_name_or_path: m\ndataset_name: x.jsonl\nreward_funcs: [accuracy_reward]\nlearning_rate: 2e-6\n"
    path.write_text(f"{text}beta: 1e-3\n", encoding="utf-8")
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


def test_the_other_learning_rate_of_adafactor_is_reported(tmp_path):
    conversion = convert_trl(NEEDED | {"optim": "adafactor"})
    assert recipe_of(conversion, tmp_path).optim.algorithm.name == "adafactor"
    (remark,) = [each for each in conversion.remarks if each.startswith("optim = ")]
    assert "multiplies it by the root mean square of the weights" in remark


@pytest.mark.parametrize("kind", [*CLIPPED, "cispo", "sapo", "vespo"])
@pytest.mark.parametrize("more", [{}, {"beta": 0.04}, {"use_vllm": True}, {"importance_sampling_level": "sequence"}])
def test_every_loss_of_trl_loads(kind, more, tmp_path):
    assert recipe_of(convert_trl(NEEDED | {"loss_type": kind} | more), tmp_path).train.objective.name == kind


def test_a_setting_of_open_r1_that_is_near_one_of_trl_concerns_logs():
    conversion = convert_trl(NEEDED | {"hub_model_revision": "v1"})
    assert conversion.mistakes == []
    assert conversion.asides["logs"] == ["hub_model_revision"]


def test_the_pattern_of_think_format_reward_is_kept(tmp_path):
    conversion = convert_trl(NEEDED | {"reward_funcs": ["think_format_reward"]})
    (tmp_path / "rewards.py").write_text("\n".join(conversion.code), encoding="utf-8")
    reward = load_reward(with_code(conversion.settings["rewards"], str(tmp_path / "rewards.py")))
    answers = ("<think>so</think>2", "<think>so</think><answer>2</answer>", "2", "so <think></think> 2")
    try:
        given = [RewardInput(prompt="1+1=", completion=each, answer="2", columns={}) for each in answers]
        assert [output.value for output in reward(given)] == [1.0, 1.0, 0.0, 0.0]
    finally:
        reward.close()


def test_an_environment_of_trl_runs_unchanged():
    conversion = convert_trl(NEEDED | {"environment_factory": "game.py:Game"})
    assert conversion.settings["environment"] == "game.py:Game"
    assert any("outdo runs TRL's environments unchanged" in remark for remark in conversion.remarks)
