"""A setting that outdo does not know gets the setting that it has instead: of another library, or misspelt."""

import dataclasses
import inspect

import pytest
from trl import GRPOConfig, GRPOTrainer, ModelConfig, RLOOConfig, ScriptArguments

from outdo.config.file import load
from outdo.config.settings import leaves
from outdo.config.unknown_settings import explain_unknown_setting, listed_hint, other_libraries
from outdo.extras.convert.trl_trainers import SIGNS, WITH_TEACHERS, table_of_trainer
from outdo.utils.errors import UserError

NEEDED = ["model=m", "data.path=x.jsonl"]
INSTEAD, NONE = other_libraries()["instead"], other_libraries()["none"]


def problems(*overrides):
    with pytest.raises(UserError) as caught:
        load(None, [*NEEDED, *overrides])
    return [problem.removeprefix("command line: ") for problem in caught.value.problems]


def settings_in(text):
    return text.split(" and ")


def load_setting(setting):
    key, equals, value = setting.partition(" = ")
    assert key in leaves() or key in ("optim.schedule", "reference.sync")
    if equals:
        teachers = [] if key == "teachers" else ["teachers=t"]
        load(None, [*NEEDED, *teachers, f"{key}={value}"])


def settings_of_trainer(trainer):
    table = table_of_trainer(trainer)
    return {*table["defaults"], *table["others"].split()}


def test_the_table_has_more_than_two_hundred_settings_of_other_libraries():
    assert len(INSTEAD) + len(NONE) > 200
    assert not INSTEAD.keys() & NONE.keys()
    assert all(name == name.lower() and "-" not in name for name in [*INSTEAD, *NONE])


def test_what_outdo_has_instead_of_a_setting_exists_and_loads():
    for setting in {each for _, instead, *_ in INSTEAD.values() for each in settings_in(instead)}:
        load_setting(setting)
    for name, (libraries, instead, *_) in INSTEAD.items():
        sentence = explain_unknown_setting(f"any.table.{name}")
        assert sentence.startswith(f"unknown setting; outdo has {instead}"), name
        assert sentence.endswith(f"(in {libraries}: {name})"), name


def test_a_setting_that_outdo_does_not_have_gets_a_reason():
    for name, (libraries, reason) in NONE.items():
        sentence = f"unknown setting; outdo has no such setting, because {reason} (in {libraries}: {name})"
        assert explain_unknown_setting(name) == sentence


def test_settings_of_trl_are_fields_of_its_configurations():
    configurations = (GRPOConfig, RLOOConfig, ModelConfig, ScriptArguments)
    fields = {field.name for each in configurations for field in dataclasses.fields(each)}
    fields |= inspect.signature(GRPOTrainer).parameters.keys()
    of_teachers = {name for trainer in WITH_TEACHERS for name in settings_of_trainer(trainer)}
    fields |= {name for name in of_teachers if any(sign in name for sign in SIGNS)}
    for name, (libraries, *_) in (INSTEAD | NONE).items():
        assert (name in fields) == ("TRL" in libraries.split(", ")), name


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("train.epsilon", 'outdo has train.objective = {name = "grpo", clip_low = 0.2, clip_high = 0.2}'),
        ("NUM-GENERATIONS", "outdo has train.group_size (in TRL: num_generations)"),
        ("actor_rollout_ref.rollout.n", "outdo has train.group_size (in verl: rollout.n)"),
        ("data.train_batch_size", "outdo has train.prompts (in verl: data.train_batch_size)"),
        ("actor_rollout_ref.model.path", "outdo has model (in verl: model.path)"),
        ("train.lr", "did you mean optim.lr?"),
        ("loss_tpye", "outdo has train.objective"),
        ("sampling.temprature", "did you mean sampling.temperature?"),
        ("model.mix", "did you mean reference.sync.mix?"),
        ("data.path.0.streming", "did you mean data.path.streaming?"),
    ],
)
def test_the_longest_ending_of_a_key_counts_and_then_the_nearest_last_part(key, sentence):
    assert explain_unknown_setting(key).startswith(f"unknown setting; {sentence}")


@pytest.mark.parametrize("key", ["train.xyzzy", "record.enabled", "gradient_products.evrey", "train.loss_tpye"])
def test_a_setting_like_no_other_below_its_first_part_gets_no_name(key):
    assert explain_unknown_setting(key) == "unknown setting"
    assert listed_hint("train.xyzzy") is None


def test_every_setting_of_an_unknown_table_is_reported(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[actor_rollout_ref.actor]\nclip_ratio = 0.3\n[actor_rollout_ref.rollout]\nn = 8\n")
    with pytest.raises(UserError) as caught:
        load(path, NEEDED)
    prefix = f"{path}: actor_rollout_ref."
    first, second = caught.value.problems
    assert first.startswith(f"{prefix}actor.clip_ratio: unknown setting; outdo has train.objective")
    assert second == f"{prefix}rollout.n: unknown setting; outdo has train.group_size (in verl: rollout.n)"


def test_options_of_pieces_with_names_of_other_libraries_get_ours():
    assert problems("train.objective.epsilon=0.2") == [
        'train.objective.epsilon: unknown option; outdo has train.objective = {name = "grpo", clip_low = 0.2, '
        "clip_high = 0.2} (in TRL: epsilon)",
    ]
