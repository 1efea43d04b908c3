import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def rows(split):
    data = load_dataset("openai/gsm8k", "main")[split]
    return data.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})


def last_number(text):
    numbers = re.findall(r"-?[\d,]*\.?\d+", text)
    return numbers[-1].replace(",", "") if numbers else ""


def correct(completions, answer, **kwargs):
    return [float(last_number(c[0]["content"]) == last_number(a)) for c, a in zip(completions, answer, strict=True)]


trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=[correct],
    args=GRPOConfig(
        output_dir="gsm8k",
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-4,
        epsilon_high=4e-4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=8,
        steps_per_generation=32,
        num_generations=8,
        num_train_epochs=1,
        use_vllm=True,
        bf16=True,
    ),
    train_dataset=rows("train"),
)
trainer.train()
