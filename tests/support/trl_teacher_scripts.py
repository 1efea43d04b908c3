"""Scripts in the forms in which people call TRL's trainers with teachers, and what each asks for."""

from collections.abc import Mapping

from trl_scripts import Script

DISTILLATION = Script(
    text="""
from datasets import load_dataset
from trl import DistillationConfig, DistillationTrainer

STUDENT, TEACHER = "org/small", "org/big"
args = DistillationConfig(
    "out", beta=0.5, temperature=0.8, max_completion_length=256, learning_rate=2e-5, num_train_epochs=1,
    per_device_train_batch_size=4, gradient_accumulation_steps=8, teacher_model_init_kwargs={"dtype": "bfloat16"})
assert args.top_p == 1.0 and args.beta < 1
trainer = DistillationTrainer(STUDENT, TEACHER, args, load_dataset("org/rows", split="train"))
trainer.train()
""",
    written={
        "model_name_or_path": "org/small",
        "teacher_model_name_or_path": "org/big",
        "output_dir": "out",
        "beta": 0.5,
        "temperature": 0.8,
        "max_completion_length": 256,
        "learning_rate": 2e-5,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "teacher_model_init_kwargs": {"dtype": "bfloat16"},
        "train_dataset": "org/rows:train",
    },
)

GKD = Script(
    text="""
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.gkd import GKDConfig, GKDTrainer

tokenizer = AutoTokenizer.from_pretrained("org/small")
student = AutoModelForCausalLM.from_pretrained("org/small", dtype=torch.bfloat16)
teacher = AutoModelForCausalLM.from_pretrained("org/big", dtype=torch.bfloat16, device_map="auto")
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
config = GKDConfig(
    output_dir="gkd", lmbda=1.0, beta=0.5, temperature=1.0, max_new_tokens=512, per_device_train_batch_size=4,
    teacher_model_name_or_path="org/another")
trainer = GKDTrainer(
    model=student, teacher_model=teacher, args=config, processing_class=tokenizer,
    train_dataset=load_dataset("org/chats", split="train"), peft_config=lora)
trainer.train()
trainer.save_model(config.output_dir)
""",
    written={
        "model_name_or_path": "org/small",
        "teacher_model_name_or_path": "org/big",
        "teacher_model_init_kwargs": {"dtype": "bfloat16"},
        "dtype": "bfloat16",
        "output_dir": "gkd",
        "lmbda": 1.0,
        "beta": 0.5,
        "temperature": 1.0,
        "max_new_tokens": 512,
        "per_device_train_batch_size": 4,
        "peft_config": {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"},
        "train_dataset": "org/chats:train",
    },
    remarks=["the teacher: device_map = auto of"],
)

SDPO = Script(
    text="""
from datasets import load_dataset
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

def right(completions, answer, **kwargs):
    return [float(completion[0]["content"].strip() == a) for completion, a in zip(completions, answer)]

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, SDPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = {"dtype": model_args.dtype}
    rows = load_dataset(script_args.dataset_name, split=script_args.dataset_train_split)
    rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})
    SDPOTrainer(
        model=model_args.model_name_or_path, args=training_args, reward_funcs=[right], train_dataset=rows,
        peft_config=get_peft_config(model_args)).train()
""",
    written={
        "model_name_or_path": "org/base",
        "dtype": "float32",
        "use_peft": False,
        "distillation_mode": "full_logits",
        "teacher_model_kind": "live",
        "num_generations": 4,
        "reward_funcs": ["CODE:right"],
        "train_dataset": "org/rows:train",
        "data.prompt": "question",
    },
    arguments=[
        *("--model_name_or_path", "org/base", "--dataset_name", "org/rows", "--teacher_model_kind", "live"),
        *("--distillation_mode", "full_logits", "--num_generations", "4"),
    ],
)

SCRIPTS: Mapping[str, Script] = {
    name.lower(): value for name, value in list(globals().items()) if isinstance(value, Script)
}
