"""A configuration of a trainer of TRL with a teacher becomes a recipe with teachers, or says what is not here."""

import dataclasses
import importlib
import inspect
import tomllib
import warnings
from itertools import product

import pytest
import trl
from odd_values import ODD
from trl.scripts.grpo import GRPOScriptArguments
from trl.scripts.utils import DatasetMixtureConfig

from outdo.config.file import load
from outdo.extras.convert.account import table_of
from outdo.extras.convert.conversion import Conversion
from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.recorded import recorded_script
from outdo.extras.convert.recorder.libraries import POSITIONAL
from outdo.extras.convert.sources import read_trl
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.trl_trainers import GRPO, NOT_HERE, WITH_TEACHERS, table_of_trainer, trainer_of
from outdo.extras.convert.written import written_recipe
from outdo.utils.errors import UserError

BESIDE = (trl.ModelConfig, trl.ScriptArguments, GRPOScriptArguments, DatasetMixtureConfig)
NEEDED = {"model_name_or_path": "m", "dataset_name": "x.jsonl"}
OTHER = {**NEEDED, "teacher_model_name_or_path": "t"}
REWARDED = {**NEEDED, "reward_funcs": ["accuracy_reward"]}


def of_trl(name):
    """Return a class of TRL, by the part of its name before `Trainer` or `Config`."""
    part = name.removesuffix("Trainer").removesuffix("Config")
    if part in ("GRPO", "Distillation"):
        return getattr(trl, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        return getattr(
            importlib.import_module(f"trl.experimental.{'iw_opd' if part == 'IWOPD' else part.lower()}"), name
        )


def converted(trainer, **written) -> Conversion:
    base = OTHER if trainer in ("DistillationTrainer", "GKDTrainer", "IWOPDTrainer") else REWARDED
    return convert_trl(Configuration(written={**base, **written}, trainer=trainer))


def recipe_of(conversion, folder):
    assert conversion.mistakes == []
    path = folder / "recipe.toml"
    (folder / "recipe_rewards.py").write_text("\n".join(conversion.code), encoding="utf-8")
    text = written_recipe(conversion, "Converted.").replace("CODE:", f"{folder}/recipe_rewards.py:")
    path.write_text(text, encoding="utf-8")
    return load(path)


def said(conversion, name):
    return [remark for remark in conversion.remarks if remark.startswith(name)]


@pytest.mark.parametrize("trainer", WITH_TEACHERS)
def test_the_table_has_the_settings_of_each_trainer_with_their_defaults(trainer):
    table = table_of_trainer(trainer)
    classes = (of_trl(trainer.replace("Trainer", "Config")), *BESIDE)
    fields = {field.name: field for kind in classes[::-1] for field in dataclasses.fields(kind)}
    own = table_of_trainer(GRPO)
    fixed = {name for name in table["defaults"] if name not in fields}
    assert {*table["defaults"], *table["others"].split()} - fixed == set(fields)
    assert not {*table["defaults"]} & {*table["others"].split()}
    for name, default in table["defaults"].items():
        assert name in fixed or fields[name].default == default, name
    for name, value in table["usual"].items():
        changed = own["usual"].get(name) != value
        assert not changed or fields[name].default == value, name


@pytest.mark.parametrize("name", [name for name in POSITIONAL if f"{name}Trainer" not in NOT_HERE])
def test_the_arguments_of_each_trainer_are_in_the_order_of_trl(name):
    arguments = [*inspect.signature(of_trl(f"{name}Trainer").__init__).parameters][1:]
    assert arguments == POSITIONAL[name].split()


@pytest.mark.parametrize(("beta", "divergence"), [(0, "forward_kl"), (0.5, "jensen_shannon"), (1, "reverse_kl")])
def test_the_beta_of_trl_is_a_divergence(beta, divergence, tmp_path):
    recipe = recipe_of(converted("DistillationTrainer", beta=beta, temperature=0.7), tmp_path)
    options = {"name": divergence, "beta": 0.5} if divergence == "jensen_shannon" else divergence
    assert recipe.train.objective.model_dump() == {"name": "gkd", "teacher_divergence": options}
    assert (recipe.train.group_size, recipe.train.prompts, recipe.sampling.temperature) == (1, 8, 0.7)
    assert [teacher.model for teacher in recipe.teachers] == ["t"]


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_a_beta_that_trl_refuses_is_refused(beta):
    assert converted("GKDTrainer", beta=beta).mistakes == [f"beta = {beta}: expected a number from 0 to 1"]


def test_the_defaults_of_gkd_are_written_out_and_what_differs_is_said(tmp_path):
    conversion = converted("GKDTrainer")
    recipe = recipe_of(conversion, tmp_path)
    assert recipe.train.objective.options == {"teacher_divergence": {"name": "jensen_shannon", "beta": 0.5}}
    assert (recipe.optim.lr, recipe.sampling.temperature, recipe.sampling.max_tokens) == (2e-5, 0.9, 128)
    assert recipe.data.max_prompt_tokens == 1024
    assert "data.demonstrations = {column = ..., share = 0.5}" in said(conversion, "lmbda = 0.5")[0]
    assert "compares the distributions at 1" in said(conversion, "temperature = 0.9")[0]
    on_policy = converted("GKDTrainer", lmbda=1.0, temperature=1.0, seq_kd=True)
    assert not said(on_policy, "lmbda") + said(on_policy, "temperature")
    assert on_policy.account["seq_kd"] == "remark"


@pytest.mark.parametrize(
    ("kind", "teacher", "sync"),
    [("base", "reference", None), ("live", "policy", None), ("ema", "reference", {"every": 1, "mix": 0.1})],
)
def test_the_policy_teaches_itself_with_the_template_of_trl(kind, teacher, sync, tmp_path):
    written = {"teacher_model_kind": kind, "teacher_update_rate": 0.1, "distillation_mode": "full_logits"}
    written["teacher_prompt_template"] = "{privileged_context}: {prompt}"
    recipe = recipe_of(converted("SDFTTrainer", **written), tmp_path)
    assert [(one.model, one.hint) for one in recipe.teachers] == [(teacher, "{privileged_context}: {prompt}")]
    assert (recipe.reference.sync and recipe.reference.sync.model_dump(exclude_none=True)) == sync
    assert recipe.train.objective.options["weight"] == "sequence_mean"


def test_the_templates_of_sdpo_become_one_hint(tmp_path):
    recipe = recipe_of(converted("SDPOTrainer"), tmp_path)
    solution = "\nCorrect solution:\n\n{right}\n\n"
    assert recipe.teachers[0].hint == f"{{prompt}}{solution}\n\nCorrectly solve the original question.\n"
    assert recipe.eval.right == "math"
    assert recipe.train.objective.model_dump() == {"name": "distillation", "weight": "sequence_mean"}
    both = converted("SDPOTrainer", include_environment_feedback=True, reprompt_template="{solution}{feedback}{prompt}")
    assert "{privileged_context}" in both.settings["teachers"]["hint"]
    assert said(both, "include_environment_feedback")
    strange = converted("SDPOTrainer", reprompt_template="{prompt}{answer}")
    assert strange.incomplete == ["reprompt_template: what stands for {answer}; write it into the hint of the teacher"]
    assert (
        "reprompt_template: expected a template of str.format"
        in converted("SDPOTrainer", reprompt_template="{").mistakes[0]
    )


def test_an_average_of_adapters_is_said_not_to_be_here(tmp_path):
    conversion = converted("SDPOTrainer", use_peft=True)
    assert "does not average adapters" in said(conversion, "teacher_model_kind = ")[0]
    assert recipe_of(conversion, tmp_path).reference.sync is None


def test_the_sum_of_two_losses_has_a_share_and_the_optimiser_allows_for_it(tmp_path):
    written = {"distillation_weight": 0.25, "distillation_mode": "full_logits", "loss_type": "grpo"}
    recipe = recipe_of(converted("SDPOTrainer", **written), tmp_path)
    assert recipe.train.objective.options["teacher_beta"] == pytest.approx(1 / 3)
    assert recipe.train.objective.options["beta"] == 0.0
    assert recipe.optim.clip_norm == pytest.approx(1 / 0.75)
    assert recipe.optim.algorithm.options["eps"] == pytest.approx(1e-8 / 0.75)
    sampled = recipe_of(converted("SDPOTrainer", **written | {"distillation_mode": "sampled_token"}), tmp_path)
    assert sampled.train.advantage.model_dump() == {"name": "mopd", "alpha": 3.0}
    alone = recipe_of(converted("SDPOTrainer", **written | {"distillation_weight": 0.0}), tmp_path)
    assert (alone.train.objective.name, alone.teachers) == ("grpo", ())


def test_the_ratio_of_several_updates_has_the_bound_of_trl(tmp_path):
    recipe = recipe_of(converted("SDPOTrainer", num_iterations=2, distillation_is_clip=3.0), tmp_path)
    assert recipe.train.objective.options["surrogate"] == {"name": "cispo", "ratio_max": 3.0}


def test_importance_weighted_distillation_has_its_gamma(tmp_path):
    recipe = recipe_of(
        converted("IWOPDTrainer", iw_opd_gamma=0.2, num_generations=4, generation_batch_size=2), tmp_path
    )
    assert (recipe.train.objective.name, recipe.train.advantage.options) == ("distillation", {"gamma": 0.2})
    assert (recipe.train.prompts, recipe.train.group_size, recipe.sampling.top_p) == (2, 4, 0.95)
    assert recipe.data.max_prompt_tokens == 512
    sparse = converted("IWOPDTrainer", distillation_objective="jsd", beta=0.0, loss_top_k=8)
    assert sparse.settings["train.objective"]["teacher_divergence"] == {"name": "forward_kl", "top": 8}
    assert not said(sparse, "loss_top_k")


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"dtype": "bfloat16", "attn_implementation": "sdpa"}, "bfloat16"),
        ('{"torch_dtype": "torch.bfloat16"}', "bfloat16"),
        ({"dtype": "bfloat16", "quantization_config": {"load_in_4bit": True}}, "nf4"),
        ({"load_in_8bit": True}, "int8"),
        ({"dtype": "float32"}, "auto"),
    ],
)
def test_the_weights_of_a_teacher_are_stored_as_in_trl(options, weights, tmp_path):
    conversion = converted("DistillationTrainer", teacher_model_init_kwargs=options)
    assert recipe_of(conversion, tmp_path).teachers[0].weights == weights
    revised = converted("DistillationTrainer", teacher_model_init_kwargs={"revision": "v1"})
    assert "revision: no counterpart" in said(revised, "teacher_model_init_kwargs")[0]


def test_a_teacher_on_a_server_is_not_here():
    conversion = converted("IWOPDTrainer", use_teacher_server=True, teacher_model_server_url="http://localhost:8000")
    assert conversion.incomplete[0].startswith("teachers: the model of the server")


@pytest.mark.parametrize("trainer", NOT_HERE)
def test_a_trainer_without_a_counterpart_is_refused_with_the_reason(trainer, tmp_path):
    path = tmp_path / "train.py"
    text = f"from trl.experimental.its_module import {trainer}\n{trainer}(model='m', args=None).train()\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"{trainer}: it.* outdo"):
        convert_trl(recorded_script(path))


def test_a_name_that_is_nearly_one_of_the_trainer_is_refused():
    assert converted("SDPOTrainer", distillation_wieght=0.5).mistakes == [
        "distillation_wieght: TRL's SDPOTrainer has no such setting; did you mean distillation_weight?"
    ]
    (remark,) = said(converted("GKDTrainer", epsilon=0.3), "epsilon")
    assert remark == "epsilon = 0.3: neither TRL's GKDTrainer nor outdo has this setting, as far as outdo knows"


def test_no_reward_and_no_teacher_are_missed_where_a_trainer_needs_them():
    assert [line.partition(":")[0] for line in convert_trl(Configuration(trainer="GKDTrainer")).incomplete] == [
        "model",
        "data.path",
        "teachers",
    ]
    assert converted("DistillationTrainer").settings["rewards"] == "CODE:no_reward"
    missing = convert_trl(Configuration(written=NEEDED, trainer="SDPOTrainer")).incomplete
    assert [line.partition(":")[0] for line in missing] == ["rewards"]


def test_settings_alone_tell_their_trainer():
    assert trainer_of(["beta", "temperature", "max_prompt_length", "num_generations"]) == GRPO
    assert trainer_of(["teacher_model_name_or_path", "beta"]) == "DistillationTrainer"
    assert trainer_of(["teacher_model_name_or_path", "lmbda", "seq_kd"]) == "GKDTrainer"
    assert trainer_of(["distillation_weight", "teacher_model_kind"]) == "SDPOTrainer"
    assert trainer_of(["distillation_mode", "teacher_prompt_template"]) == "SDFTTrainer"
    assert trainer_of(["iw_opd_gamma"]) == "IWOPDTrainer"
    assert said(convert_trl({**OTHER, "lmbda": 1.0, "seq_kd": False}), "the trainer: GKDTrainer, which has these")


def test_the_command_of_trl_names_its_trainer(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "accelerate launch --num_processes 2 trl distillation --model_name_or_path m --dataset_name d --beta 0 \\\n"
        "  --teacher_model_name_or_path t --per_device_train_batch_size 4\n",
        encoding="utf-8",
    )
    reading = read_trl(path, [])
    assert (reading.trainer, reading.processes) == ("DistillationTrainer", 2)
    conversion = convert_trl(reading, processes=2)
    assert conversion.settings["train.objective"]["teacher_divergence"] == "forward_kl"
    assert conversion.settings["train.prompts"] == 8


@pytest.mark.parametrize("trainer", WITH_TEACHERS)
def test_an_odd_value_of_a_setting_of_a_trainer_is_a_mistake_or_a_recipe(trainer):
    own = table_of("trl_teachers")[trainer]
    branches = [{}, {"num_iterations": 2, "distillation_weight": 0.5, "distillation_mode": "full_logits"}]
    of_sdpo = [*branches, {"include_environment_feedback": True, "distillation_weight": 0.5}]
    for branch in of_sdpo if trainer == "SDPOTrainer" else branches[:1]:
        for name, value in product([*own["defaults"], *own["others"].split()], ODD):
            conversion = converted(trainer, **branch, **{name: value} if name not in branch else {})
            if not conversion.mistakes:
                tomllib.loads(written_recipe(conversion, "Converted."))
            assert name in branch or name in conversion.account
