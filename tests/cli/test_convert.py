"""`outdo convert` writes a recipe and the file of its rewards, prints remarks, and refuses what it cannot read."""

import shutil
from pathlib import Path

import pytest

from outdo.config.file import load
from outdo.utils.errors import UserError

CONVERTED = Path(__file__).parent / "converted"
"""A script of TRL, and the recipe and the file of rewards that it becomes."""


def test_a_script_becomes_a_recipe_and_a_file_of_its_rewards(outdo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(CONVERTED / "grpo.py", tmp_path)
    done = outdo("convert", "trl", "grpo.py", "--rows", "7473")
    assert done.status == 0, done.error + done.out
    for name in ("recipe.toml", "recipe_rewards.py"):
        assert Path(name).read_text(encoding="utf-8") == (CONVERTED / name).read_text(encoding="utf-8")
    load("recipe.toml")


def test_the_recipe_of_a_script_can_be_checked(outdo, chat_model, gsm8k, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("recipe.toml", "recipe_rewards.py"):
        shutil.copy(CONVERTED / name, tmp_path)
    machine = [f"model={chat_model}", f"data.path={gsm8k / 'train.jsonl'}", "data.limit=100", "precision=float32"]
    done = outdo("check", "recipe.toml", "data.system=Answer with a number.", "sampling.max_tokens=64", *machine)
    assert done.status == 0, done.out + done.error
    assert "No errors" in done.out


def test_remarks_are_printed_and_the_next_command(outdo, tmp_path):
    config = tmp_path / "config.yaml"
    settings = "model_name_or_path: m\ndataset_name: x.jsonl\nreward_funcs: accuracy_reward\nlogging_steps: 3\n"
    config.write_text(settings, encoding="utf-8")
    out = tmp_path / "recipe.toml"
    done = outdo("convert", "trl", config, "num_generations=4", "--out", out)
    assert done.status == 0
    assert f"{out}: written" in done.out
    assert "  accuracy_reward: outdo's reward math decides" in done.out
    assert "  logs: logging_steps\n" in done.out
    assert done.out.endswith(f"Next: outdo check {out}\n")
    assert load(out).train.group_size == 4


def test_all_mistakes_are_printed_and_nothing_is_written(outdo, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("num_generatons: 8\nlearning_rate: 1e-6\nepsilon_hig: 0.3\n", encoding="utf-8")
    done = outdo("convert", "trl", config, "--out", tmp_path / "recipe.toml")
    assert done.status == 2
    assert f"{config}: num_generatons: TRL has no such setting; did you mean num_generations?" in done.error
    assert f"{config}: epsilon_hig: TRL has no such setting; did you mean epsilon_high?" in done.error
    assert not (tmp_path / "recipe.toml").exists()


def test_a_recipe_that_lacks_its_model_is_written_and_told(outdo, tmp_path):
    out = tmp_path / "recipe.toml"
    done = outdo("convert", "verl", "data.train_files=gsm8k.parquet", "actor_rollout_ref.rollout.n=8", "--out", out)
    assert done.status == 1
    assert "The recipe is not complete:" in done.out
    assert f"{out}: model: required" in done.out
    assert load(out, ["model=m"]).train.compat == "verl"


def test_a_recipe_without_the_reward_of_its_source_is_not_complete_and_does_not_load(outdo, tmp_path):
    out = tmp_path / "recipe.toml"
    done = outdo("convert", "trl", "model_name_or_path=m", "dataset_name=x.jsonl", "--out", out)
    assert done.status == 1
    assert "rewards: the function that scores an answer; nothing that was read says it" in done.out
    assert "# Not complete:" in out.read_text(encoding="utf-8")
    with pytest.raises(UserError, match="not complete: rewards"):
        load(out)


def test_a_recipe_that_exists_is_not_overwritten(outdo, tmp_path):
    out = tmp_path / "recipe.toml"
    out.write_text("model = 'mine'\n", encoding="utf-8")
    done = outdo("convert", "openrlhf", "--pretrain", "m", "--prompt_data", "x.jsonl", "--out", out)
    assert done.status == 2
    assert "exists; choose another --out" in done.error
    assert out.read_text(encoding="utf-8") == "model = 'mine'\n"


SCRIPT = '''
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
import argparse

def multiply(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: one
        b: other
    """
    return a * b

def score(completions, **_):
    return [0.0 for _ in completions]

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-6)
config = GRPOConfig("o", learning_rate=parser.parse_args().lr, per_device_train_batch_size=4)
GRPOTrainer("m", [score], config, load_dataset("a/b"), tools=[multiply])
'''


def test_a_script_gets_its_arguments_and_its_tools_become_an_environment(outdo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("grpo.py").write_text(SCRIPT, encoding="utf-8")
    assert outdo("convert", "trl", "grpo.py", "num_generations=4", "--lr", "5e-6").status == 0
    recipe = load("recipe.toml")
    assert recipe.optim.lr == 5e-6
    assert recipe.train.group_size == 4
    assert recipe.environment.model_dump() == {"name": "tools", "functions": ["recipe_rewards.py:multiply"]}
    assert recipe.rewards[0].name == "recipe_rewards.py:score"
    assert "# Python ran the script in a sandbox" in Path("recipe.toml").read_text(encoding="utf-8")


def test_a_script_that_cannot_be_run_is_refused_with_what_to_do(outdo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("grpo.py").write_text(f"1 / 0\n{SCRIPT}", encoding="utf-8")
    done = outdo("convert", "trl", "grpo.py")
    assert done.status == 2
    assert "grpo.py: outdo runs a script in a sandbox to read it, and could not: line 1: Zero" in done.error
    assert "docs/from-trl.md" in done.error
    assert not Path("recipe.toml").exists()
