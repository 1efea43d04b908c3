"""TRL in the benchmark: `GRPOTrainer.train()` as it is, which waits at the start of each step for its turn.

A step is timed from `on_step_begin` to `on_step_end`: sampling, rewards, log-probabilities, update. What TRL does
between steps (data loader, logs) is not counted.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import PreTrainedModel, TrainerCallback
from transformers.generation.logits_process import LogitsProcessorList
from trl import GRPOConfig, GRPOTrainer

from benchmarks.suite.outdo_side import LR
from benchmarks.suite.processes import rank, start_others
from benchmarks.suite.setting import Setting, Turn, Turns
from benchmarks.suite.work import (
    ForcedLengths,
    adapter_of,
    model_of,
    most_memory,
    prompts_of,
    reward_of,
    synchronise,
    tokenizer_of,
)

TUNED = {"bf16": False, "gradient_checkpointing": False}
"""Settings that make TRL faster than its defaults, besides the batch size: float32 on a CPU, no gradient checkpointing.

Its default β = 0 needs no reference, and is kept.
"""
USUAL_BATCH = 8
"""TRL's default for the answers per forward pass; more are accumulated."""
STEPS = 10**6  # more than any benchmark asks for


class TurnCallback(TrainerCallback):
    """Waits for the turn before a step, and reports its times afterwards, from the first process only."""

    def __init__(self, setting: Setting, turns: Turns) -> None:
        self.setting = setting
        self.turns = turns
        self.first = rank() == 0
        self.sampling = 0.0
        self.began = 0.0

    def on_step_begin(self, *args: Any, **options: Any) -> None:
        """Wait for the turn in all processes."""
        if self.first:
            self.turns.wait()
        _together()
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **options: Any) -> None:
        """Report the step when all processes have finished it."""
        _together()
        synchronise(self.setting.device)
        turn = Turn(
            seconds=time.perf_counter() - self.began,
            sampling=self.sampling,
            tokens=self.setting.case.sampled,
            bytes=most_memory(self.setting.device),
        )
        if self.first:
            self.turns.done(turn)

    def time_sampling(self, model: PreTrainedModel, lengths: tuple[int, ...]) -> None:
        """Make `generate` keep to the lengths, and time it."""
        own = model.generate

        def generate(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            output = own(*args, **options, logits_processor=LogitsProcessorList([ForcedLengths(lengths)]))  # type: ignore[operator]
            self.sampling = time.perf_counter() - began
            return output

        model.generate = generate  # type: ignore[method-assign]


def step(setting: Setting, turns: Turns) -> None:
    """Train until there are no more turns. Options: `tuned`, `micro_batch`, `processes`, and those of `GRPOConfig`."""
    options = dict(setting.options)
    tuned, several = options.pop("tuned", False), options.pop("processes", False)
    processes = setting.threads if several else 1
    if processes > 1:
        start_others("trl-processes", setting, processes, {"ACCELERATE_USE_CPU": "true"})
        torch.set_num_threads(1)
    case, model = setting.case, model_of(setting)
    answers = case.prompts * case.group // processes  # of this process
    tokenizer = tokenizer_of(model)
    callback = TurnCallback(setting, turns)
    start = rank() * answers
    callback.time_sampling(model, (case.answers * case.prompts)[start : start + answers])
    batch = min(options.pop("micro_batch", answers if tuned else USUAL_BATCH), answers)
    disable_progress_bars()
    words = [" ".join(f"t{token}" for token in prompt) for prompt in prompts_of(setting, len(tokenizer))]
    rows = Dataset.from_list([{"prompt": text} for text in words])
    with TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=str(Path(folder) / "trl"),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=answers // batch,
            num_generations=case.group,
            max_completion_length=max(case.answers),
            learning_rate=LR,
            max_steps=STEPS,
            shuffle_dataset=False,
            use_cpu=setting.device == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **(TUNED if tuned else {}),
            **options,
        )
        trainer = GRPOTrainer(
            model=model,
            args=config,
            reward_funcs=_every_other,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[callback],
            peft_config=adapter_of(setting),
        )
        turns.ready()
        trainer.train()


def _every_other(completions: list[str], **columns: Any) -> list[float | None]:
    return [reward_of(index) for index in range(len(completions))]


def _together() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
