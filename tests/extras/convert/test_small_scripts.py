"""Small scripts, each with one thing beside the plain form: it is in the recipe, or said to be missing."""

import re
from pathlib import Path
from typing import Any

import pytest

from outdo.extras.convert.conversion import NOT_COMPLETE, Conversion
from outdo.extras.convert.recorded import recorded_script
from outdo.extras.convert.trl import convert_trl
from outdo.rewards import RewardInput, load_reward

HEAD = """
import os
from types import SimpleNamespace
import torch
from datasets import load_dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer
from mine import load, make

def score(completions, **kwargs):
    return [1.0 for _ in completions]

class Rewards:
    def score(self, completions, **kwargs):
        return [1.0 for _ in completions]

rows = load_dataset("org/rows", split="train")
four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
"""


def convert(text: str, folder: Path) -> Conversion:
    path = folder / "train.py"
    path.write_text(f"{HEAD}\n{text}", encoding="utf-8")
    return convert_trl(recorded_script(path))


def trainer(**arguments: str) -> str:
    """Return the call of the trainer with these arguments, as they are written."""
    plain = {"model": '"org/base"', "reward_funcs": "score", "args": "GRPOConfig()", "train_dataset": "rows"}
    return f"GRPOTrainer({', '.join(f'{name}={value}' for name, value in (plain | arguments).items())}).train()"


LORA = {"name": "lora", "rank": 8, "targets": "all-linear"}
IN_THE_RECIPE: dict[str, tuple[str, dict[str, Any]]] = {
    "model in four bits under its own name": (
        'model = AutoModelForCausalLM.from_pretrained("org/base", quantization_config=four_bits)\n'
        f"model = get_peft_model(model, LoraConfig(r=8))\n{trainer(model='model')}",
        {"model": "org/base", "weights": "nf4", "train.adapter": LORA},
    ),
    "adapter under its own name": (
        'model = AutoModelForCausalLM.from_pretrained("org/base")\n'
        f'model = PeftModel.from_pretrained(model, "org/sft", is_trainable=True)\n{trainer(model="model")}',
        {"model": "org/sft"},
    ),
    "table of arguments": (
        'given = {"model": "org/base", "peft_config": LoraConfig(r=8)}\n'
        "GRPOTrainer(reward_funcs=score, args=GRPOConfig(), train_dataset=rows, **given)",
        {"model": "org/base", "train.adapter": LORA},
    ),
    "reward model by itself": (
        trainer(reward_funcs='AutoModelForSequenceClassification.from_pretrained("org/reward", num_labels=1)'),
        {"rewards": {"name": "reward_model", "path": "org/reward"}},
    ),
    "files of splits": (
        'data = load_dataset("json", data_files={"train": "a.jsonl", "test": "b.jsonl"})\n'
        + trainer(train_dataset='data["train"]', eval_dataset='data["test"]'),
        {"data.path": "a.jsonl", "data.eval_path": "b.jsonl"},
    ),
    "share of the rows": (
        "data = rows.train_test_split(0.1)\n" + trainer(train_dataset='data["train"]', eval_dataset='data["test"]'),
        {"data.path": "org/rows:train", "data.eval_rows": f"{NOT_COMPLETE}0.1 of all rows"},
    ),
    "share of the rows to train on": (
        "data = rows.train_test_split(train_size=0.9)\n"
        + trainer(train_dataset='data["train"]', eval_dataset='data["test"]'),
        {"data.eval_rows": f"{NOT_COMPLETE}0.1 of all rows"},
    ),
    "steps that are set later": (
        f"t = {trainer().removesuffix('.train()')}\nt.args.max_steps = 17\nt.train()",
        {"steps": 17},
    ),
}


@pytest.mark.parametrize("name", IN_THE_RECIPE)
def test_what_a_script_says_is_in_the_recipe(name: str, tmp_path: Path) -> None:
    text, expected = IN_THE_RECIPE[name]
    settings = convert(text, tmp_path).settings
    assert {key: settings.get(key) for key in expected} == expected


MODEL = 'model = AutoModelForCausalLM.from_pretrained("org/base")\n'
LATER = f"t = {trainer().removesuffix('.train()')}\n"
MISSING: dict[str, tuple[str, list[str]]] = {
    "model of a function": (
        f"model, tokenizer = load()\n{trainer(model='model')}",
        ["model_name_or_path = mine.load()"],
    ),
    "frozen layers": (
        f"{MODEL}for name, p in model.named_parameters():\n    print(p.numel())\n    p.requires_grad = False\n"
        + trainer(model="model"),
        ["line N: what the script does to the model (an item of named_parameters(): [1].requires_grad = False)"],
    ),
    "weights from elsewhere": (
        f'{MODEL}model.load_state_dict(torch.load("sft.pt"))\n{trainer(model="model")}',
        ["line N: what the script does to the model (load_state_dict())"],
    ),
    "settings of a function": (trainer(args="GRPOConfig(**make())"), ["mine.make(): settings of GRPOConfig"]),
    "token ids as prompts": (
        f"rows = rows.map(lambda row: {{'prompt': load().apply_chat_template(row['messages'])}})\n{trainer()}",
        ["data.prompt: mine.load().apply_chat_template(row['messages']) makes token ids"],
    ),
    "module of another folder": (
        f"import sys\nsys.path.append('/far')\nfrom far import near\ndef far_score(completions, **kwargs):\n"
        f"    return near(completions)\n{trainer(reward_funcs='far_score')}",
        ["the module far: read by far_score, and set by the script while it runs"],
    ),
    "adapter by place": (
        trainer(peft_config="LoraConfig(16, 32)"),
        ["peft.LoraConfig(16, 32): arguments of the adapter without a name"],
    ),
    "method as a reward": (
        trainer(reward_funcs="[Rewards().score]"),
        ["reward_funcs: score, a method of an object of the class Rewards"],
    ),
    "unknown tools": (trainer(tools="make()"), ["tools: mine.make()"]),
    "unknown environment": (trainer(environment_factory="make()"), ["environment_factory: mine.make()"]),
    "optimiser": (
        trainer(optimizers='(make("adam"), None)'),
        ["optimizers: (mine.make('adam'), None); set optim.lr, optim.algorithm and optim.schedule"],
    ),
    "callback": (
        f"t = {trainer(callbacks='[make()]').removesuffix('.train()')}\nt.add_callback(load)\nt.train()",
        [
            "line N: what the script sets in the trainer (add_callback(mine.load))",
            "callbacks: [mine.make()]; a hook of the recipe may do the same, see docs/trackers.md",
        ],
    ),
    "attribute of the trainer": (
        f"{LATER}t.beta = 0.5\nt.train()",
        ["line N: what the script sets in the trainer (beta = 0.5)"],
    ),
    "model of the trainer": (
        f"{LATER}t.model.config.use_cache = False\nt.model.load_adapter('x')\nt.train()",
        ["line N: what the script does to the model (load_adapter())"],
    ),
    "method of the class": (
        f"GRPOTrainer.compute_loss = lambda *_: 0\n{trainer()}",
        ["GRPOTrainer: the script's own trainer, with its own compute_loss; see docs/pieces.md"],
    ),
    "error before the training": (
        f"{LATER}1 / 0\nt.args.max_steps = 3\nt.train()",
        ["what the script does after an error: line N: ZeroDivisionError: division by zero"],
    ),
    "other rows of the same data": (
        trainer(train_dataset="rows.skip(64)", eval_dataset="rows.take(64)"),
        ["eval_dataset: other rows of the data that the recipe trains on; save the changed rows as a .jsonl file"],
    ),
    "part by place": (
        trainer(train_dataset="rows[:100]"),
        ["train_dataset = datasets.load_dataset('org/rows', split='train')[slice(None, 100, None)]"],
    ),
    "number of rows to train on": (
        trainer(train_dataset='rows.train_test_split(train_size=500)["train"]'),
        ["train_dataset = datasets.load_dataset('org/rows', split='train').train_test_split(train_size=500)"],
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_a_recipe_cannot_say_is_missing(name: str, tmp_path: Path) -> None:
    text, missing = MISSING[name]
    said = convert(text, tmp_path).incomplete
    assert [re.sub(r"line \d+", "line N", sentence) for sentence in said] == missing


DATACLASS = """
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Arguments:
    lr: float = 1e-6
(given,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-6)
given = parser.parse_args()
"""
SAID = {
    "default of a dataclass": (
        DATACLASS + trainer(args="GRPOConfig(learning_rate=given.lr)"),
        "--lr = 1e-06: defaults of the script's own arguments",
    ),
    "default of argparse": (
        ARGPARSE + trainer(args="GRPOConfig(learning_rate=given.lr)"),
        "--lr = 1e-06: defaults of the script's own arguments",
    ),
    "variable that is not set": (
        f'lora = LoraConfig(r=8) if os.environ.get("USE_LORA") else None\n{trainer(peft_config="lora")}',
        "$USE_LORA = None: defaults of the script's own arguments",
    ),
    "layers that Unsloth chooses": (
        f"from unsloth import FastModel\n{MODEL}"
        "model = FastModel.get_peft_model(model, r=8, finetune_mlp_modules=False)\n" + trainer(model="model"),
        "finetune_mlp_modules = False of get_peft_model: Unsloth chooses layers by them",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_may_be_otherwise_is_said(name: str, tmp_path: Path) -> None:
    text, start = SAID[name]
    assert [remark for remark in convert(text, tmp_path).remarks if remark.startswith(start)]


BESIDE = """
from beside import clean
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

def score(completions, answer, **kwargs):
    return [float(clean(c) == a) for c, a in zip(completions, answer)]

GRPOTrainer("org/base", score, GRPOConfig(), load_dataset("org/rows"))
"""


def test_the_file_of_a_reward_imports_a_module_beside_the_script(tmp_path: Path) -> None:
    script, rewards = tmp_path / "scripts" / "train.py", tmp_path / "recipe_rewards.py"
    script.parent.mkdir()
    script.write_text(BESIDE, encoding="utf-8")
    script.with_name("beside.py").write_text("def clean(text):\n    return text.strip()\n", encoding="utf-8")
    rewards.write_text(recorded_script(script).source, encoding="utf-8")
    reward = load_reward(f"{rewards}:score")
    try:
        given = RewardInput(prompt="1+1=", completion=" 2 ", answer="2", columns={"answer": "2"})
        assert [output.value for output in reward([given])] == [1.0]
    finally:
        reward.close()
