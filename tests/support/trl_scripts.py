"""Scripts in the forms in which people call TRL's `GRPOTrainer`, and what each asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script, and what a reading of it has to say."""

    text: str
    written: Mapping[str, Any]
    """Settings that it has, by the names of TRL."""
    unread: Sequence[str] = ()
    """All settings that nobody can know."""
    missing: Sequence[str] = ()
    """All else that nobody can know, in part."""
    remarks: Sequence[str] = ()
    """What is said besides, in part."""
    arguments: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


UNSLOTH = Script(
    text='''
%%capture
!pip install unsloth vllm
from unsloth import FastLanguageModel, is_bfloat16_supported
import torch, re
from datasets import load_dataset, Dataset
from trl import GRPOConfig, GRPOTrainer

max_seq_length = 1024
lora_rank = 32
SYSTEM = """Think first.
<answer>...</answer>"""

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="org/base-1b", max_seq_length=max_seq_length, load_in_4bit=True, max_lora_rank=lora_rank)
model = FastLanguageModel.get_peft_model(
    model, r=lora_rank, target_modules=["q_proj", "v_proj"], lora_alpha=lora_rank,
    use_gradient_checkpointing="unsloth", random_state=3407)

def after_hashes(text: str) -> str | None:
    if "####" not in text:
        return None
    return text.split("####")[1].strip()

def questions(split="train") -> Dataset:
    data = load_dataset("org/rows", "main")[split]
    data = data.map(lambda x: {
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": x["question"]}],
        "answer": after_hashes(x["answer"]),
    })
    return data

dataset = questions()

def correct(prompts, completions, answer, **kwargs) -> list[float]:
    texts = [completion[0]["content"] for completion in completions]
    print("-" * 20, prompts[0][-1]["content"])
    return [2.0 if text.split("<answer>")[-1].split("</answer>")[0] == a else 0.0 for text, a in zip(texts, answer)]

max_prompt_length = 256
training_args = GRPOConfig(
    learning_rate=5e-6, optim="paged_adamw_8bit", bf16=is_bfloat16_supported(), fp16=not is_bfloat16_supported(),
    num_generations=6, max_prompt_length=max_prompt_length,
    max_completion_length=max_seq_length - max_prompt_length, max_steps=250, output_dir="outputs")
trainer = GRPOTrainer(
    model=model, processing_class=tokenizer, reward_funcs=[correct], args=training_args, train_dataset=dataset)
trainer.train()
model.save_lora("grpo_saved_lora")
''',
    written={
        "model_name_or_path": "org/base-1b",
        "load_in_4bit": True,
        "peft_config": {"r": 32, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 32},
        "learning_rate": 5e-6,
        "optim": "paged_adamw_8bit",
        "num_generations": 6,
        "max_prompt_length": 256,
        "max_completion_length": 768,
        "max_steps": 250,
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
        "seed": 3407,
        "output_dir": "outputs",
        "reward_funcs": ["CODE:correct"],
        "train_dataset": "org/rows/main:train",
        "data.prompt": "question",
        "data.system": "Think first.\n<answer>...</answer>",
    },
    remarks=["bf16", "fp16", "max_seq_length = 1024", "random_state"],
)

PEFT_BY_PLACE = Script(
    text="""
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer
import torch

def score(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

if __name__ == "__main__":
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained("org/base-1b", quantization_config=quantised, device_map="auto")
    lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=16, lora_dropout=0.05)
    model = get_peft_model(base, lora)
    model.print_trainable_parameters()
    GRPOTrainer(model, score, GRPOConfig("out", beta=0.04), load_dataset("org/rows", split="train")).train()
""",
    written={
        "model_name_or_path": "org/base-1b",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "peft_config": {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "task_type": "peft.TaskType.CAUSAL_LM"},
        "output_dir": "out",
        "beta": 0.04,
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
    },
    remarks=["bnb_4bit_compute_dtype = torch.bfloat16", "device_map = auto"],
)

ADAPTER_OF_A_FUNCTION = Script(
    text="""
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

def make_lora(rank):
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")

def load():
    return "org/base-1b"

def score(completions, **kwargs):
    return [len(c) for c in completions]

GRPOTrainer(model=load(), peft_config=make_lora(4), reward_funcs=score, args=GRPOConfig(),
            train_dataset=load_dataset("org/rows", split="train"))
""",
    written={
        "model_name_or_path": "org/base-1b",
        "peft_config": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
    },
)

UNREAD_ADAPTER = Script(
    text="""
from datasets import load_dataset
from somewhere import make_lora
from trl import GRPOConfig, GRPOTrainer
GRPOTrainer(model="org/base-1b", peft_config=make_lora(8), reward_funcs="org/reward", args=GRPOConfig(),
            train_dataset=load_dataset("org/rows", split="train"))
""",
    written={"model_name_or_path": "org/base-1b", "reward_funcs": ["org/reward"], "train_dataset": "org/rows:train"},
    unread=["peft_config"],
)

TRAINED_ADAPTER = Script(
    text="""
from datasets import load_dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward, get_soft_overlong_punishment

base = AutoModelForCausalLM.from_pretrained("org/base-1b")
policy = PeftModel.from_pretrained(base, "org/sft-adapter", is_trainable=True)
punish = get_soft_overlong_punishment(max_completion_len=512, soft_punish_cache=128)
trainer = GRPOTrainer(model=policy, reward_funcs=[accuracy_reward, punish], args=GRPOConfig(temperature=0.9),
                      processing_class=AutoTokenizer.from_pretrained("org/base-1b"),
                      train_dataset=load_dataset("org/rows", split="train[:5%]"))
trainer.train()
""",
    written={
        "model_name_or_path": "org/sft-adapter",
        "temperature": 0.9,
        "reward_funcs": ["trl.rewards.accuracy_reward", {"name": "overlong", "max_tokens": 512, "cache": 128}],
        "train_dataset": "org/rows:train[:5%]",
    },
    remarks=["the base of the adapter is what its adapter_config.json names; in the script org/base-1b"],
)

MERGED_ADAPTER = Script(
    text="""
from datasets import load_dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

model = AutoModelForCausalLM.from_pretrained("org/base-1b")
model = PeftModel.from_pretrained(model, "org/sft").merge_and_unload()
GRPOTrainer(model=model, reward_funcs="org/reward", args=GRPOConfig(), train_dataset=load_dataset("org/rows")["train"])
""",
    written={"reward_funcs": ["org/reward"], "train_dataset": "org/rows:train"},
    unread=["model_name_or_path"],
)

MAPPED_SETTINGS = Script(
    text="""
import yaml
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from rewards import score

with open("config.yaml") as file:
    cfg = yaml.safe_load(file)
settings = dict(cfg["grpo"])
settings["learning_rate"] = float(settings["learning_rate"])
args = GRPOConfig(**settings)
args.beta = 0.04
args.num_generations *= 2
GRPOTrainer(
    model=cfg["model"], reward_funcs=[score], args=args, peft_config=LoraConfig(**dict(cfg["lora"])),
    train_dataset=load_dataset("json", data_files=cfg["data"], split="train"),
).train()
""",
    files={
        "config.yaml": "model: org/base-1b\ndata: rows.jsonl\nlora: {r: 4}\n"
        "grpo: {learning_rate: 2e-6, num_generations: 4, max_steps: 100}\n",
        "rewards.py": "def score(completions, **kwargs):\n    return [1.0 for _ in completions]\n",
    },
    written={
        "model_name_or_path": "org/base-1b",
        "learning_rate": 2e-6,
        "num_generations": 8,
        "max_steps": 100,
        "beta": 0.04,
        "peft_config": {"r": 4},
        "reward_funcs": ["FOLDER/rewards.py:score"],
        "train_dataset": "rows.jsonl",
    },
)

ARGPARSE = Script(
    text="""
import argparse
import os
from datasets import load_dataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--kl", action="store_true")
    parser.add_argument("--wandb", default=os.environ.get("WANDB_PROJECT"))
    return parser.parse_args()

def score(completions, **kwargs):
    return [1.0 for _ in completions]

def main():
    args = parse()
    set_seed(1)
    os.makedirs("out", exist_ok=True)
    config = GRPOConfig(
        learning_rate=args.lr, num_generations=args.group_size, beta=0.04 if args.kl else 0.0,
        report_to="wandb" if args.wandb else "none", run_name=f"grpo-{args.model}")
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(config)
    GRPOTrainer(args.model, score, config, load_dataset("org/rows", split="train")).train()

main()
""",
    arguments=["--lr", "5e-6", "--kl"],
    written={
        "learning_rate": 5e-6,
        "num_generations": 8,
        "beta": 0.04,
        "report_to": "none",
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
    },
    unread=["model_name_or_path"],
    remarks=["it names a folder, and decides nothing else"],
)

DATACLASSES = Script(
    text="""
from dataclasses import dataclass, field
from datasets import load_dataset
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config

@dataclass
class Arguments:
    dataset: str = field(default="org/rows")
    limit: int = 100

@dataclass
class Config(GRPOConfig):
    learning_rate: float = 2e-6
    benchmarks: list[str] = field(default_factory=list)

def score(completions, **kwargs):
    return [1.0 for _ in completions]

def main(script_args, training_args, model_args):
    rows = load_dataset(script_args.dataset, split="train").shuffle(seed=1).select(range(script_args.limit))
    if training_args.eval_strategy != "no":
        raise ValueError("no held-out rows")
    GRPOTrainer(model=model_args.model_name_or_path, reward_funcs=[score], args=training_args, train_dataset=rows,
                peft_config=get_peft_config(model_args)).train()

if __name__ == "__main__":
    main(*TrlParser((Arguments, Config, ModelConfig)).parse_args_and_config())
""",
    arguments=["--config", "settings.yaml", "--lora_r", "4"],
    files={"settings.yaml": "model_name_or_path: org/base-1b\nuse_peft: true\nnum_generations: 4\nbeta: 0.01\n"},
    written={
        "model_name_or_path": "org/base-1b",
        "use_peft": True,
        "lora_r": 4,
        "num_generations": 4,
        "beta": 0.01,
        "learning_rate": 2e-6,
        "data.limit": 100,
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
    },
    remarks=["the script takes 100 rows by chance, the recipe the first ones"],
)

REGISTRY = Script(
    text="""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
from package.rewards import get_reward_funcs
import dataclasses

@dataclasses.dataclass
class GRPOScriptArguments(ScriptArguments):
    reward_funcs: list[str] = dataclasses.field(default_factory=lambda: ["accuracy", "format"])
    scale: float = 2.0

def main(script_args, training_args, model_args):
    dataset = load_dataset(script_args.dataset_name, name=script_args.dataset_config)
    def make_conversation(example, prompt_column: str = "problem"):
        prompt = []
        if training_args.run_name is not None:
            prompt.append({"role": "system", "content": training_args.run_name})
        prompt.append({"role": "user", "content": example[prompt_column]})
        return {"prompt": prompt}
    dataset = dataset.map(make_conversation)
    for split in dataset:
        if "messages" in dataset[split].column_names:
            dataset[split] = dataset[split].remove_columns("messages")
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path, reward_funcs=get_reward_funcs(script_args), args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
        callbacks=[])
    trainer.train()

if __name__ == "__main__":
    parser = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig))
    main(*parser.parse_args_and_config())
""",
    arguments=["--dataset_name", "org/rows", "--model_name_or_path", "org/base-1b", "--scale=3.0"],
    files={
        "package/__init__.py": "",
        "package/rewards.py": """
from .helpers import one
def accuracy(completions, solution, **kwargs):
    return [one(c) for c in completions]
def tagged(completions, **kwargs):
    return [1.0 for _ in completions]
def scaled(factor):
    def score(completions, **kwargs):
        return [factor for _ in completions]
    return score
def get_reward_funcs(script_args):
    registry = {"accuracy": accuracy, "format": tagged, "scaled": scaled(script_args.scale)}
    return [registry[name] for name in script_args.reward_funcs] + [registry["scaled"]]
""",
        "package/helpers.py": "def one(text):\n    return 1.0\n",
    },
    written={
        "model_name_or_path": "org/base-1b",
        "reward_funcs": [
            "CODE:accuracy",
            "CODE:tagged",
            "not complete: score of line 8 of FOLDER/package/rewards.py, which is made while the script runs",
        ],
        "train_dataset": "org/rows:train",
        "data.prompt": "problem",
    },
    missing=["reward_funcs[3]: score of line 8"],
    remarks=["train_dataset: line 23: the script changes the rows"],
)

BRANCHES = Script(
    text="""
import torch
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

def score(completions, **kwargs):
    return [1.0 for _ in completions]

if torch.cuda.is_available():
    args = GRPOConfig(learning_rate=1e-6, per_device_train_batch_size=8, beta=0.0)
    device = "cuda"
else:
    args = GRPOConfig(learning_rate=1e-6, per_device_train_batch_size=2, beta=0.0)
    device = "cpu"
if torch.cuda.device_count() < 1:
    raise SystemExit("needs a GPU")
if device == "cuda" and torch.cuda.get_device_capability()[0] >= 8:
    args.bf16 = True
GRPOTrainer("org/base-1b", score, args, load_dataset("org/rows", split="train"))
""",
    written={
        "model_name_or_path": "org/base-1b",
        "learning_rate": 1e-6,
        "beta": 0.0,
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
    },
    unread=["per_device_train_batch_size"],
    remarks=["bf16 depends on"],
)

UNNAMED_REWARDS = Script(
    text="""
from functools import partial
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

class Scorer:
    def __init__(self, limit):
        self.limit, self.__name__ = limit, "scorer"
    def __call__(self, completions, **kwargs):
        return [float(len(c) < self.limit) for c in completions]

def make(limit):
    counter = open
    def short(completions, **kwargs):
        counter
        return [float(len(c) < limit) for c in completions]
    return short

def scaled(completions, factor=1.0, **kwargs):
    return [factor for _ in completions]

GRPOTrainer(
    model="org/base-1b",
    reward_funcs=[
        make(30), lambda completions, **kwargs: [0.0 for _ in completions], Scorer(9), partial(scaled, factor=2.0)],
    args=GRPOConfig(reward_weights=[1.0, 2.0, 3.0, 4.0]), train_dataset=load_dataset("org/rows", split="train"))
""",
    written={
        "model_name_or_path": "org/base-1b",
        "reward_weights": [1.0, 2.0, 3.0, 4.0],
        "reward_funcs": [
            "not complete: short of line 14, which reads counter of a function around it: "
            "write it as `def` at the top of a file",
            "not complete: a lambda of line 25: write it as `def` at the top of a file",
            "not complete: an object of the class Scorer",
            {"name": "CODE:scaled", "factor": 2.0},
        ],
        "train_dataset": "org/rows:train",
    },
    missing=["reward_funcs[1]: short", "reward_funcs[2]: a lambda", "reward_funcs[3]: an object of the class Scorer"],
)

REWARD_WITH_SURROUNDINGS = Script(
    text="""
import os
import re
import sys
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
os.environ["MY_FLAG"] = "1"
WORDS = []
for word in ("so", "thus"):
    WORDS.append(word)
WEIGHTS = {"right": 1.0}
WEIGHTS["right"] = 2.0
PATTERN = re.compile(r"#### (.+)")
LIMIT = len(sys.argv) * 100
try:
    import orjson as json
except ImportError:
    import json

def main():
    bonus = 2
    def score(completions, answer, **kwargs):
        print(os.getcwd(), json.dumps(WORDS), LIMIT)
        return [WEIGHTS["right"] * bonus if PATTERN.search(c)[1] == a else 0 for c, a in zip(completions, answer)]
    GRPOTrainer("org/base-1b", score, GRPOConfig(), load_dataset("org/rows", split="train"))

main()
""",
    written={"model_name_or_path": "org/base-1b", "reward_funcs": ["CODE:score"], "train_dataset": "org/rows:train"},
)

RENDERED_PROMPTS = Script(
    text="""
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
tok = AutoTokenizer.from_pretrained("org/base-1b")
rows = load_dataset("org/rows", split="train").map(lambda r: {"prompt": tok.apply_chat_template(
    [{"role": "user", "content": r["question"]}], tokenize=False, add_generation_prompt=True, enable_thinking=False)})
def score(completions, answer, **kwargs):
    return [float(("<think>" + c).endswith(a)) for c, a in zip(completions, answer)]
GRPOTrainer(model="org/base-1b", reward_funcs=score, args=GRPOConfig(), train_dataset=rows, processing_class=tok)
""",
    written={
        "model_name_or_path": "org/base-1b",
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
        "data.prompt": "question",
        "data.template": {"enable_thinking": False},
    },
)

TEXT_PROMPTS = Script(
    text="""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

def to_prompt(row):
    return {"prompt": f"Question: {row['problem']}\\nAnswer:", "solution": row["answer"]}

def score(completions, solution, **kwargs):
    return [float(c == s) for c, s in zip(completions, solution)]

rows = load_dataset("org/rows").filter(lambda row: len(row["problem"]) < 100).map(to_prompt)
GRPOTrainer("org/base-1b", score, GRPOConfig(), rows["train"], eval_dataset=rows["test"])
""",
    written={
        "model_name_or_path": "org/base-1b",
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
        "eval_dataset": "org/rows:test",
        "data.prompt": "problem",
        "data.template": "Question: {prompt}\nAnswer:",
    },
    remarks=["the script changes the rows (filter)"],
)

RENAMED_ROWS = Script(
    text="""
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

model = AutoModelForCausalLM.from_pretrained("org/base-1b")
def make(row):
    row["prompt"] = [{"role": "user", "content": row["question"]}]
    return row
def score(completions, question, **kwargs):
    return [float(c[0]["content"] == q) for c, q in zip(completions, question)]
rows = load_dataset("org/rows", split="train").rename_column("problem", "question").map(make)
GRPOTrainer(model=model, reward_funcs=score, args=GRPOConfig(), train_dataset=rows)
""",
    files={"trl/__init__.py": "raise RuntimeError('a clone of TRL beside the script')\n"},
    written={
        "model_name_or_path": "org/base-1b",
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
        "data.prompt": "problem",
    },
)

LOADED_IN_A_TUPLE = Script(
    text="""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("org/base-1b", full_finetuning=True)
tokenizer.pad_token = tokenizer.eos_token
model.config.use_cache = False
config = GRPOConfig(
    per_device_train_batch_size=8, gradient_accumulation_steps=1, learning_rate=1e-6, weight_decay=0.1, warmup_steps=3,
    seed=1, optim="adamw_torch")
GRPOTrainer(model, "org/reward", config, load_dataset("org/rows", split="train"), processing_class=tokenizer)
""",
    written={
        "model_name_or_path": "org/base-1b",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-6,
        "weight_decay": 0.1,
        "warmup_steps": 3,
        "seed": 1,
        "optim": "adamw_torch",
        "reward_funcs": ["org/reward"],
        "train_dataset": "org/rows:train",
    },
    remarks=["full_finetuning"],
)

SPLITS = Script(
    text="""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
train, test = load_dataset("org/rows", split=["train[:5%]", "test[:5%]"])
GRPOTrainer("org/base-1b", "org/reward", GRPOConfig(), train, test)
""",
    written={
        "model_name_or_path": "org/base-1b",
        "reward_funcs": ["org/reward"],
        "train_dataset": "org/rows:train[:5%]",
        "eval_dataset": "org/rows:test[:5%]",
    },
)

HELD_OUT = Script(
    text="""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
rows = load_dataset("org/rows", split="train_sft").train_test_split(test_size=50, seed=1)
GRPOTrainer("org/base-1b", "org/reward", GRPOConfig(), train_dataset=rows["train"], eval_dataset=rows["test"])
""",
    written={
        "model_name_or_path": "org/base-1b",
        "reward_funcs": ["org/reward"],
        "train_dataset": "org/rows:train_sft",
        "data.eval_rows": 50,
    },
)

OWN_TRAINER = Script(
    text="""
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True

class MyTrainer(GRPOTrainer):
    def __init__(self, *args, alpha=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = alpha
    def compute_loss(self, model, inputs, **kwargs):
        return super().compute_loss(model, inputs, **kwargs) * self.alpha

SFTTrainer(model="org/base-1b", args=SFTConfig("sft"), train_dataset=Dataset.from_list([{"text": "x"}])).train()
rows = Dataset.from_list([{"prompt": "2+2=", "answer": "4"}])
MyTrainer(
    model="org/base-1b", reward_funcs="org/reward", args=GRPOConfig(), train_dataset=rows, callbacks=[Stop()]).train()
""",
    written={"reward_funcs": ["org/reward"]},
    unread=["model_name_or_path", "train_dataset"],
    missing=["MyTrainer: the script's own trainer, with its own __init__, compute_loss", "callbacks: [an object"],
)

FIRE = Script(
    text="""
import fire
import wandb
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

@wandb.decorated(1)
def score(completions, **kwargs):
    return [1.0 for _ in completions]

def train(model, lr: float = 3e-6, data="org/rows"):
    wandb.init(project="x")
    args = GRPOConfig(learning_rate=lr, max_steps=int(data == "org/rows"))
    GRPOTrainer(model, [score], args, load_dataset(data, split="train")).train()

fire.Fire(train)
""",
    written={
        "learning_rate": 3e-6,
        "max_steps": 1,
        "reward_funcs": ["CODE:score"],
        "train_dataset": "org/rows:train",
    },
    unread=["model_name_or_path"],
)

VARIABLES = Script(
    text="""
import json, os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from tqdm import tqdm
try:
    import vllm
    HAVE_VLLM = True
except ImportError:
    HAVE_VLLM = False

data = load_dataset(os.environ["DATA"], split="train")
rows = [row for row in tqdm(data)]
args = GRPOConfig(
    learning_rate=float(os.environ["LR"]), num_train_epochs=1, warmup_steps=len(rows) // 10, use_vllm=HAVE_VLLM,
    output_dir=os.path.join(os.environ.get("OUT", "runs"), "first"))
def score(completions, **kwargs):
    return [1.0 for _ in completions]
GRPOTrainer("org/base-1b", score, args, data)
""",
    written={
        "model_name_or_path": "org/base-1b",
        "num_train_epochs": 1,
        "output_dir": "runs/first",
        "reward_funcs": ["CODE:score"],
    },
    unread=["learning_rate", "warmup_steps", "use_vllm", "train_dataset"],
)

TOOLS = Script(
    text='''
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
def multiply(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: one
        b: other
    """
    return a * b
def score(completions, **kwargs):
    return [0.0 for _ in completions]
GRPOTrainer("m", [score], GRPOConfig("o"), load_dataset("a/b"), tools=[multiply], rollout_func=multiply)
''',
    written={
        "model_name_or_path": "m",
        "output_dir": "o",
        "reward_funcs": ["CODE:score"],
        "tools": ["CODE:multiply"],
        "train_dataset": "a/b:train",
    },
    unread=["rollout_func"],
)

LATER_CHANGES = Script(
    text="""
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

lora = LoraConfig(r=8)
lora.target_modules = ["q_proj"]
tokenizer = AutoTokenizer.from_pretrained("org/base-1b")
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token
if tokenizer.chat_template is None:
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
model = AutoModelForCausalLM.from_pretrained("org/base-1b", attn_implementation="eager")
model.config.use_cache = False
model.gradient_checkpointing_enable()
model.resize_token_embeddings(1000)
data = load_dataset("org/rows")
data = data.map(lambda row: {"prompt": [{"role": "user", "content": f"{row['question']} Think."}]})
config = GRPOConfig(learning_rate=1e-6)
for name, value in {"beta": 0.1, "seed": 7}.items():
    setattr(config, name, value)
config.__dict__.update(max_steps=3)
trainer = GRPOTrainer(
    model=model, reward_funcs="org/reward", args=config, train_dataset=data["train"], peft_config=lora,
    eval_dataset=data["test"].select(range(50)), processing_class=tokenizer)
config.num_iterations = 2
trainer.train()
config.num_iterations = 3
""",
    written={
        "model_name_or_path": "org/base-1b",
        "attn_implementation": "eager",
        "peft_config": {"r": 8, "target_modules": ["q_proj"]},
        "learning_rate": 1e-6,
        "beta": 0.1,
        "seed": 7,
        "max_steps": 3,
        "num_iterations": 2,
        "reward_funcs": ["org/reward"],
        "train_dataset": "org/rows:train",
        "eval_dataset": "org/rows:test",
        "eval.rows": 50,
    },
    missing=["data.prompt", "resize_token_embeddings()", "processing_class, line 13: chat_template"],
)

ENVIRONMENT = Script(
    text="""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

LIMIT = 5

class Game:
    def reset(self, **kwargs):
        self.score = 0
    def guess(self, number: int) -> str:
        "Guess."
        self.score = float(number == LIMIT)
        return "higher"

def reward(environments, **kwargs):
    return [each.score for each in environments]

for size in (2, 4):
    GRPOTrainer(
        "org/base-1b", reward, GRPOConfig(num_generations=size), load_dataset("org/rows", split="train"),
        environment_factory=Game).train()
""",
    written={
        "model_name_or_path": "org/base-1b",
        "num_generations": 2,
        "reward_funcs": ["CODE:reward"],
        "train_dataset": "org/rows:train",
        "environment_factory": "CODE:Game",
    },
    remarks=["makes a trainer in a loop; the recipe has the first"],
)

SCRIPTS: Mapping[str, Script] = {
    name.lower().replace("_", " "): value for name, value in list(globals().items()) if isinstance(value, Script)
}
