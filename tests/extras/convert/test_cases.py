"""Configurations in the forms of people: each setting ends in the recipe, in a remark or as not complete."""

import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conversion_table import check_rows, row
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.config.file import load
from outdo.extras.convert import shell
from outdo.extras.convert.conversion import NOT_COMPLETE, Conversion
from outdo.extras.convert.openrlhf import convert_openrlhf
from outdo.extras.convert.reading import Configuration, NotRunError, with_code
from outdo.extras.convert.sources import read_openrlhf, read_trl, read_verl
from outdo.extras.convert.trl import convert_trl
from outdo.extras.convert.verl import convert_verl
from outdo.extras.convert.written import written_recipe
from outdo.utils.errors import UserError

CASES = Path(__file__).parent / "cases"
READERS: dict[str, Callable[[Path, Sequence[str]], Configuration]] = {
    "verl": read_verl,
    "trl": read_trl,
    "openrlhf": read_openrlhf,
}
MAPPINGS: dict[str, Callable[[Configuration], Conversion]] = {
    "verl": convert_verl,
    "trl": convert_trl,
    "openrlhf": convert_openrlhf,
}
HOME = str(Path.home())


@dataclass(kw_only=True)
class Expected:
    """What a configuration becomes: settings of the recipe, what is missing, and where its settings end."""

    recipe: dict[str, Any]
    ends: tuple[int, int, int, int]
    """How many settings end in the recipe, are a default of the library, have a remark, are not complete."""
    missing: Sequence[str] = ()
    """The beginnings of what is said to be not complete; all of it."""
    remarks: Sequence[str] = field(default_factory=tuple)
    """Parts of remarks."""


INSTEAD_OF_A_REMARK = ("rollout.max_new_tokens", "distillation.distillation_loss.loss_mode")
"""Settings without which there is a further remark, and the same recipe: the value of data.max_len, and k1 for k3."""

GRPO = {"train.advantage": "group_standardised"}
EXPECTED: dict[str, Expected] = {
    "verl/arrays.sh": Expected(
        recipe=GRPO
        | {
            "data.path": f"{HOME}/data/gsm8k/train.parquet",
            "train.prompts": 512,
            "train.group_size": 8,
            "train.minibatches": 4,
            "sampling.max_tokens": 1024,
            "train.adapter": {"name": "lora", "rank": 32, "alpha": 64, "targets": "all-linear"},
            "rewards": "last_number",
            "optim.lr": 3e-6,
        },
        ends=(15, 0, 3, 0),
    ),
    "verl/dapo.sh": Expected(
        recipe=GRPO
        | {
            "data.path": f"{HOME}/verl/data/dapo-math-17k.parquet",
            "data.max_prompt_tokens": 2048,
            "train.prompts": 64,
            "train.minibatches": 4,
            "train.dynamic_sampling": 9,
            "steps": 300,
            "rewards": [{"name": "math", "weight": 2.0}, {"name": "overlong", "weight": 1.0, "cache": 2048}],
        },
        ends=(17, 4, 6, 0),
        remarks=["verl's rewards are then -1 and 1"],
    ),
    "verl/docker.sh": Expected(
        recipe=GRPO | {"train.prompts": 128, "steps": 10, "model": "Qwen/Qwen2.5-1.5B", "rewards": "math"},
        ends=(8, 0, 0, 0),
    ),
    "verl/unset.sh": Expected(
        recipe=GRPO
        | {
            "train.prompts": f"{NOT_COMPLETE}$NNODES",
            "train.group_size": f"{NOT_COMPLETE}$GROUP",
            "model": f"{NOT_COMPLETE}$BASE_MODEL",
            "data.path": f"{NOT_COMPLETE}$DATA_DIR/gsm8k/train.parquet",
            "run": f"{NOT_COMPLETE}run_$TAG",
        },
        ends=(2, 0, 1, 6),
        missing=[
            *("rewards", "data.train_files", "data.train_batch_size", "actor_rollout_ref.model.path"),
            *("actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.policy_loss.loss_mode"),
            "trainer.experiment_name",
        ],
    ),
    "verl/arguments.sh": Expected(
        recipe={"train.advantage": "leave_one_out", "train.prompts": 64, "run": f"{NOT_COMPLETE}$2", "steps": 7},
        ends=(7, 0, 1, 1),
        missing=["trainer.default_local_dir = $2"],
    ),
    "verl/config_name.sh": Expected(
        recipe=GRPO | {"train.prompts": 32, "train.minibatches": 1, "optim.lr": 2e-6, "sampling.max_tokens": 700},
        ends=(9, 1, 2, 0),
        remarks=["multi_turn.enable = true: outdo has environment"],
    ),
    "verl/missing_config.sh": Expected(
        recipe={"steps": 20}, ends=(1, 0, 0, 0), missing=["./somewhere/not_here.yaml", "rewards", "model", "data.path"]
    ),
    "verl/branches.sh": Expected(
        recipe=GRPO | {"optim.lr": 1e-5, "train.prompts": 32, "train.group_size": 4, "seed": 1},
        ends=(11, 0, 0, 0),
        remarks=["the script starts 2 trainings"],
    ),
    "verl/sourced.sh": Expected(
        recipe={
            "train.advantage": {"name": "reinforce_pp", "gamma": 1.0},
            "steps": 11,
            "model": "org/base",
            "rewards": f"{CASES}/verl/rewards/score.py:compute_score",
        },
        ends=(8, 1, 1, 0),
        remarks=["with the answers of a batch too"],
    ),
    "verl/slurm.sh": Expected(
        recipe={"train.advantage": "group_centred", "train.prompts": 256, "steps": 100}, ends=(8, 0, 1, 0)
    ),
    "verl/other_entry.sh": Expected(
        recipe={"train.prompts": 64, "rewards": "math"},
        ends=(6, 0, 2, 0),
        missing=["recipe.sppo.main_sppo"],
        remarks=["algorithm.adv_estimator = none", "algorithm.sppo_eta"],
    ),
    "verl/generated.yaml": Expected(
        recipe=GRPO | {"model": f"{HOME}/models/base", "train.group_size": 6, "train.minibatches": 4},
        ends=(5, 49, 4, 0),
    ),
    "verl/environment.yaml": Expected(
        recipe=GRPO
        | {"train.prompts": 64, "model": f"{NOT_COMPLETE}$MODEL", "rewards": "rewards/score.py:compute_score"},
        ends=(6, 0, 0, 2),
        missing=["data.train_files = $DATA_DIR/train.parquet", "actor_rollout_ref.model.path = $MODEL"],
    ),
    "verl/early.sh": Expected(
        recipe={
            "train.critic": {"name": "model", "lr": 2e-5, "clip": 0.5, "warmup": 2},
            "train.advantage": {"name": "gae", "gamma": 1.0, "lam": 1.0},
        },
        ends=(4, 2, 5, 0),
        remarks=["of verl of early 2025", "for these give algorithm.use_kl_in_reward=true"],
    ),
    "verl/checks.sh": Expected(recipe=GRPO | {"model": f"{HOME}/models/base", "steps": 3}, ends=(7, 0, 1, 0)),
    "verl/near_names.sh": Expected(
        recipe=GRPO | {"sampling.temperature": 0.9, "sampling.top_p": 0.95},
        ends=(9, 0, 2, 0),
        remarks=["stray: a word", "did you mean kw_args?", "did you mean temperature?"],
    ),
    "verl/distillation.sh": Expected(
        recipe={
            "teachers": "org/big",
            "train.objective": {"name": "grpo", "clip_low": 0.2, "clip_high": 0.2, "beta": 0.0, "weight": "token_mean"},
            "train.advantage": "distillation",
            "train.critic": None,
            "train.group_size": 1,
            "rewards": "CODE:no_reward",
        },
        ends=(11, 2, 7, 0),
        remarks=["loss_max_clamp = 10.0: outdo does not clamp"],
    ),
    "verl/teachers.sh": Expected(
        recipe=GRPO
        | {
            "teachers": [
                {"model": "org/words", "name": "openai/gsm8k"},
                {"model": "org/hard-words", "name": "org/hard"},
            ],
            "train.objective": {
                **{"name": "grpo", "clip_low": 0.2, "clip_high": 0.2, "weight": "token_mean", "beta": 0.0},
                **{"teacher_beta": 0.5, "teacher_divergence": {"name": "forward_kl", "top": 64}},
            },
            "rewards": "last_number",
        },
        ends=(15, 0, 2, 0),
        remarks=["in its column teacher", "as in forward_kl_topk_tail"],
    ),
    "openrlhf/grpo.sh": Expected(
        recipe=GRPO
        | {
            "rewards": f"{NOT_COMPLETE}{CASES}/openrlhf/reward_func.py",
            "train.group_size": 8,
            "sampling.max_tokens": 2048,
            "track": ["wandb"],
        },
        ends=(17, 0, 3, 0),
        missing=["rewards"],
    ),
    "openrlhf/heredoc.sh": Expected(
        recipe={
            "rewards": {"name": "reward_model", "path": "org/reward"},
            "train.advantage": {"name": "gae", "gamma": 1.0, "lam": 0.95},
            "data.limit": 100_000,
        },
        ends=(11, 6, 5, 0),
        remarks=["normalize_reward"],
    ),
    "openrlhf/slurm.sh": Expected(recipe={"train.advantage": "leave_one_out", "track": ["wandb"]}, ends=(9, 0, 0, 0)),
    "openrlhf/agent.sh": Expected(
        recipe={"train.advantage": "reinforce_pp_baseline", "rewards": "environment"},
        ends=(10, 0, 1, 0),
        missing=["environment: the class in agent.py"],
        remarks=["train.max_staleness"],
    ),
    "openrlhf/misspelt.sh": Expected(
        recipe={
            "train.adapter": {"name": "lora", "rank": 16, "alpha": 32, "targets": "all-linear"},
            "weights": "nf4",
            "train.advantage": f"{NOT_COMPLETE}$ESTIMATOR",
        },
        ends=(5, 0, 1, 3),
        missing=["pretrain = $MODEL", "prompt_data = $DATA", "advantage_estimator = $ESTIMATOR"],
        remarks=["did you mean best_metric_key?"],
    ),
    "trl/cli.sh": Expected(recipe=GRPO | {"train.group_size": 16, "optim.lr": 3e-6, "steps": 200}, ends=(18, 3, 3, 0)),
    "trl/trl_grpo.yaml": Expected(
        recipe=GRPO
        | {
            "rewards": ["math", {"name": "CODE:think_format_reward", "weight": 0.5}],
            "optim.schedule": {"name": "cosine", "warmup": 20},
        },
        ends=(14, 5, 3, 0),
    ),
    "trl/open_r1.yaml": Expected(
        recipe=GRPO
        | {
            "rewards": ["math", "format", f"{NOT_COMPLETE}tag_count"],
            "data.system": "Think first.",
            "data.prompt": "problem",
        },
        ends=(14, 5, 11, 0),
        missing=["reward_funcs: tag_count"],
        remarks=["of TRL before 1.0"],
    ),
    "trl/early.yaml": Expected(
        recipe=GRPO | {"rewards": {"name": "reward_model", "path": "org/reward-model"}, "data.max_prompt_tokens": 256},
        ends=(8, 0, 1, 0),
        remarks=["of TRL of early 2025", "beta = 0.04 (now 0.0)"],
    ),
    "trl/no_reward.yaml": Expected(
        recipe=GRPO | {"data.path": "org/rows:train[:5%]", "rewards": f"{NOT_COMPLETE}rewards"},
        ends=(5, 0, 1, 0),
        missing=["rewards"],
    ),
    "trl/own_script.sh": Expected(
        recipe=GRPO | {"model": "org/base-1b", "run": f"{NOT_COMPLETE}out/$RUN", "steps": 100},
        ends=(7, 3, 1, 1),
        missing=["train_grpo.py", "output_dir = out/$RUN", "rewards"],
    ),
}


@cache
def read(name: str) -> tuple[Configuration, Conversion]:
    library = name.partition("/")[0]
    configuration = READERS[library](CASES / name, [])
    return configuration, MAPPINGS[library](configuration)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_setting_ends_in_the_recipe_in_a_remark_or_as_not_complete(name: str, tmp_path: Path) -> None:
    configuration, conversion = read(name)
    expected = EXPECTED[name]
    assert conversion.mistakes == []
    assert {key: conversion.settings.get(key) for key in expected.recipe} == expected.recipe
    assert len(conversion.incomplete) == len(expected.missing)
    for line, start in zip(conversion.incomplete, expected.missing, strict=True):
        assert line.startswith(start)
    for part in expected.remarks:
        assert any(part in remark for remark in conversion.remarks), part
    assert len(conversion.account) == len(configuration.written) + len(configuration.unread)
    counts = Counter(conversion.account.values())
    assert (counts["recipe"], counts["default"], counts["remark"], counts["incomplete"]) == expected.ends
    said = " ".join([*conversion.remarks, *(name for names in conversion.asides.values() for name in names)])
    for setting, end in conversion.account.items():
        assert end != "remark" or setting.rpartition(".")[2] in said or setting in INSTEAD_OF_A_REMARK, setting
    recipe, code = tmp_path / "recipe.toml", tmp_path / "rewards.py"
    code.write_text("\n".join(conversion.code), encoding="utf-8")
    named = replace(conversion, settings=with_code(conversion.settings, str(code)))
    recipe.write_text(written_recipe(named, "Converted."), encoding="utf-8")
    if not conversion.incomplete:
        load(recipe)


def test_every_case_is_in_the_table() -> None:
    beside = {"verl/config/my_grpo.yaml", "trl/zero3.yaml"}
    files = {str(file.relative_to(CASES)) for file in CASES.rglob("*") if file.suffix in (".sh", ".yaml")}
    assert files - beside == set(EXPECTED)


def test_the_table_of_the_decision_has_each_configuration() -> None:
    check_rows(row(name, read(name)[1]) for name in EXPECTED)


def test_no_setting_that_is_said_to_be_in_the_recipe_can_be_left_out() -> None:
    """What `account` says is counted again here, from outside: without the setting the recipe is another one."""
    configuration, conversion = read("trl/open_r1.yaml")
    for name, end in conversion.account.items():
        others = {other: value for other, value in configuration.written.items() if other != name}
        spelt = {"dtype": "torch_dtype"}.get(name, name)
        others.pop(spelt, None)
        without = convert_trl(others)
        same = without.settings == conversion.settings and without.mistakes == conversion.mistakes
        assert same == (end != "recipe"), name


SHELL = [name for name in EXPECTED if name.endswith(".sh") and not name.startswith("trl")]
YAML = [name for name in EXPECTED if name.endswith(".yaml")]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_yaml_becomes_a_recipe_or_one_clear_error(data: st.DataObject) -> None:
    damaged(data.draw(st.sampled_from(YAML)), data)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_damaged_shell_script_becomes_a_recipe_or_one_clear_error(data: st.DataObject) -> None:
    damaged(data.draw(st.sampled_from(SHELL)), data)


def damaged(name: str, data: st.DataObject) -> None:
    """Convert a configuration of which lines are left out, exchanged or cut."""
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    for _ in range(data.draw(st.integers(0, 4))):
        place, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        kind = data.draw(st.sampled_from(["delete", "exchange", "cut"]))
        if kind == "delete" and len(lines) > 1:
            del lines[place]
        elif kind == "exchange":
            lines[place], lines[other] = lines[other], lines[place]
        else:
            lines[place] = lines[place][: data.draw(st.integers(0, len(lines[place])))]
    library = name.partition("/")[0]
    file = CASES / f"{Path(name).stem}.damaged{Path(name).suffix}"
    file.write_text("\n".join(lines), encoding="utf-8")
    try:
        conversion = MAPPINGS[library](READERS[library](file, []))
    except (UserError, NotRunError):
        return
    finally:
        file.unlink()
    tomllib.loads(written_recipe(conversion, "Converted."))


def test_a_script_that_bash_cannot_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("for i in 1 2; do\npython3 -m verl.trainer.main_ppo data.train_batch_size=8\n")
    with pytest.raises(NotRunError, match="syntax error"):
        read_verl(tmp_path / "run.sh", [])


def test_a_variable_that_bash_calculates_with_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=$((NNODES * 64))\n")
    with pytest.raises(NotRunError, match=r"calculates with \$NNODES, which nobody sets; give NNODES=VALUE after"):
        read_verl(tmp_path / "run.sh", [])
    assert read_verl(tmp_path / "run.sh", ["NNODES=2"]).written == {"data.train_batch_size": 128}


def test_without_bubblewrap_no_script_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise UserError(["no sandbox works on this machine. Install one"])

    monkeypatch.setattr(shell, "open_bubblewrap", none)
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=8\n")
    with pytest.raises(NotRunError, match="works on this machine; install bubblewrap, which needs Linux"):
        read_verl(tmp_path / "run.sh", [])


def test_a_variable_of_the_script_is_given_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$BASE_MODEL\n")
    configuration = read_verl(tmp_path / "run.sh", ["BASE_MODEL=org/base", "trainer.total_epochs=2"])
    assert configuration.written == {"actor_rollout_ref.model.path": "org/base", "trainer.total_epochs": 2}
    assert configuration.unread == {}
