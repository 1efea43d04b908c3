"""A script that calls TRL's `GRPOTrainer` is read, and not run."""

import subprocess
import sys

import pytest

from outdo.extras.convert.trl_script import read_script, with_code
from outdo.rewards import RewardInput, load_reward
from outdo.utils.errors import UserError

SCRIPT = """
import re
import os
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward, get_soft_overlong_punishment
from my_rewards import other
from package.more import third

raise SystemExit("this script has been run")

NAME = "Qwen/Qwen2.5-0.5B-Instruct"
LENGTH = 2 * 256
PATTERN = re.compile(r"#### (.+)")
common = dict(temperature=0.9, beta=0.0)

def found(text):
    match = PATTERN.search(text)
    return match and match[1]

@torch.no_grad()
def correct(completions, answer, **kwargs):
    return [float(found(c[0]["content"]) == a) for c, a in zip(completions, answer)]

def questions(split):
    data = load_dataset("openai/gsm8k", "main")[split]
    return data.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})

config = GRPOConfig(
    output_dir=f"runs/{NAME}", learning_rate=1e-5, max_completion_length=LENGTH, num_generations=8,
    per_device_train_batch_size=4 * 4, bf16=torch.cuda.is_available(), report_to=["wandb"], **common,
)
model = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype=torch.bfloat16)
lora = LoraConfig(r=16, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
train_data = questions("train")
punish = get_soft_overlong_punishment(max_completion_len=512, soft_punish_cache=128)
trainer = GRPOTrainer(
    model=model, reward_funcs=[correct, think_format_reward, punish, other, third, lambda **k: 0], args=config,
    train_dataset=train_data, peft_config=lora, processing_class=AutoTokenizer.from_pretrained(NAME),
    callbacks=[object()],
)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "grpo.py"
    path.write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "my_rewards.py").write_text("def other(completions, **_): ...\n", encoding="utf-8")
    return read_script(path)


def test_names_expressions_and_options_are_followed(script):
    assert script.written["model_name_or_path"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert script.written["output_dir"] == "runs/Qwen/Qwen2.5-0.5B-Instruct"
    assert script.written["max_completion_length"] == 512
    assert script.written["per_device_train_batch_size"] == 16
    assert script.written["temperature"] == 0.9
    assert script.written["report_to"] == ["wandb"]
    assert script.written["train_dataset"] == "openai/gsm8k/main:train"
    lora = {"r": 16, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    assert script.written["peft_config"] == lora


def test_what_only_running_would_tell_is_reported_with_its_line(script):
    assert "bf16" not in script.written
    line = next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if "bf16" in text)

    def told(part):
        return next(remark for remark in script.remarks if part in remark)

    assert told("bf16: torch.cuda.is_available()").startswith(f"line {line}:")
    assert "write it as `def`" in told("lambda **k: 0")
    assert "the script changes the rows (map)" in told("train_dataset")
    assert "callbacks of GRPOTrainer" in told("callbacks")


def test_reward_functions_get_a_file_of_their_own_with_what_they_use(script, tmp_path):
    functions = with_code(script.written["reward_funcs"], "recipe_rewards.py")
    overlong = {"name": "overlong", "max_tokens": 512, "cache": 128}
    assert functions[0] == "recipe_rewards.py:correct"
    assert functions[1] == "trl.rewards.think_format_reward"
    assert functions[2] == overlong
    assert functions[3] == f"{tmp_path / 'my_rewards.py'}:other"
    assert functions[4] == "package.more.third"
    assert len(functions) == 5
    assert "GRPOTrainer" not in script.source
    assert "SystemExit" not in script.source
    test = "print(correct([[{'content': 'it is #### 4'}], [{'content': '5'}]], ['4', '5']))"
    plain = script.source.replace("@torch.no_grad()\n", "").replace("import torch", "")
    command = [sys.executable, "-c", f"{plain}\n{test}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[1.0, 0.0]\n"
    assert "@with_messages\n@torch.no_grad()\ndef correct" in script.source


def test_functions_get_messages_where_the_script_makes_messages_of_the_rows(script, tmp_path):
    assert any("my_rewards.py:other: TRL gives it messages" in remark for remark in script.remarks)
    (tmp_path / "rewards.py").write_text(script.source.replace("@torch.no_grad()\n", "").replace("import torch", ""))
    asked = [{"role": "user", "content": "2+2="}]
    inputs = [RewardInput(prompt="2+2=", completion="it is #### 4", answer="4")]
    inputs += [RewardInput(prompt=asked, completion="it is #### 5", answer="4")]
    reward = load_reward(f"{tmp_path / 'rewards.py'}:correct")
    try:
        assert [output.value for each in inputs for output in reward([each])] == [1.0, 0.0]
    finally:
        reward.close()
    plain = tmp_path / "plain.py"
    plain.write_text(SCRIPT.replace('[{"role": "user", "content": row["question"]}]', 'row["question"]'))
    assert "with_messages" not in read_script(plain).source


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("def f(:", "not Python"), ("print(1)", "nothing calls GRPOTrainer(...)"), ("\0", "not Python")],
)
def test_a_file_that_is_no_such_script_is_refused_in_a_sentence(text, sentence, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"script\.py") as caught:
        read_script(path)
    assert sentence in str(caught.value)


def test_names_that_are_bound_to_themselves_end(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "a = a\nb = c\nc = b\n"
        "GRPOTrainer(model=a, reward_funcs=b, train_dataset=c, args=GRPOConfig(beta=b, seed=2 / 0))\n",
        encoding="utf-8",
    )
    assert read_script(path).remarks == [
        "line 4: beta: c has no value that could be read",
        "line 4: seed: not an operation on numbers that has a result",
        "line 1: model_name_or_path: a has no value that could be read",
        "line 4: b: no function that a recipe can name; write it as `def`",
        "line 4: train_dataset: no load_dataset(...) was found; name a file or a data set of the Hub",
    ]
