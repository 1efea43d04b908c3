"""The same training by TRL's GRPOTrainer: python -m benchmarks.smollm2.trl_run TASK SEED LR MODEL FOLDER THREADS

The process knows no model of outdo's. What it saved is evaluated after it has ended, as any folder of a model is.
"""

import json
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.smollm2 import run
from benchmarks.smollm2.plan import Planned
from outdo.rewards import load_reward
from outdo.rewards.types import RewardInput


def of_trl(wanted: Planned, folder: Path, model: Path, threads: int) -> dict[str, Any]:
    """Make what is missing of a run; return its line of the results. Raises `InterruptedRunError`."""
    arguments = [wanted.task, str(wanted.seed), str(wanted.lr), str(model), str(folder), str(threads)]
    usage = run.process([sys.executable, "-m", "benchmarks.smollm2.trl_run", *arguments], folder, threads)
    recipe = recipe_of(wanted.task)
    evaluations = [
        {"step": step, **evaluated(saved(folder, step), wanted.task, recipe)} for step in evaluated_steps(recipe)
    ]
    return json.loads((folder / "line.json").read_text()) | {"evaluations": evaluations} | usage


def recipe_of(task: str) -> dict[str, Any]:
    return tomllib.loads((run.EXAMPLES / f"{task}.toml").read_text())


def evaluated_steps(recipe: dict[str, Any]) -> range:
    every = recipe["eval"]["every"]
    return range(every, recipe["steps"] + 1, every)


def saved(folder: Path, step: int) -> Path:
    return folder / "trl" / f"checkpoint-{step}"


def evaluated(model: Path, task: str, recipe: dict[str, Any]) -> dict[str, float]:
    """Return the mean reward of the greedy answers to the two held-out sets."""
    reward, limit = run.REMEMBERED[task].reward, recipe["sampling"]["max_tokens"]
    return {
        f"{name}/greedy_reward": run.greedy_reward(model, run.Asked(path, reward, limit))
        for name, path in recipe["data"]["eval_path"].items()
    }


def train(task: str, seed: int, rate: float, model: str, folder: Path, threads: int) -> dict[str, Any]:
    """Train with the settings of the task's recipe; return the curve."""
    import torch
    import transformers
    import trl
    from transformers import TrainerCallback

    torch.set_num_threads(threads)
    log = folder / "steps.jsonl"

    class Watch(TrainerCallback):
        """Keeps the seconds and the log of each step."""

        def on_step_begin(self, *args: Any, **others: Any) -> None:
            self.since = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            append(log, {"step": state.global_step, "seconds": time.perf_counter() - self.since})

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if logs and "reward" in logs:
                append(log, {"step": state.global_step, "logged": logs})

    trainer = trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(**settings(task, folder, seed=seed, rate=rate)),
        reward_funcs=reward(task),
        train_dataset=questions(task),
        callbacks=[Watch()],
    )
    trainer.train(resume_from_checkpoint=bool(list((folder / "trl").glob("checkpoint-*"))) or None)
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return line_of(log) | {"versions": versions}


def settings(task: str, folder: Path, *, seed: int, rate: float) -> dict[str, Any]:
    """Return the settings of the task's recipe, as TRL names them."""
    recipe = recipe_of(task)
    return {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": recipe["train"]["prompts"] * recipe["train"]["group_size"],
        "num_generations": recipe["train"]["group_size"],
        "max_completion_length": recipe["sampling"]["max_tokens"],
        "max_steps": recipe["steps"],
        "learning_rate": rate,
        "lr_scheduler_type": "constant",
        "loss_type": "grpo",
        "beta": 0.0,
        "temperature": 1.0,
        "seed": seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "steps",
        "save_steps": recipe["eval"]["every"],
        "model_init_kwargs": {"dtype": "float32"},
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }


def questions(task: str) -> Any:
    """Return the questions of a task as a data set of TRL."""
    from datasets import Dataset

    rows = [json.loads(line) for line in Path(recipe_of(task)["data"]["path"]).read_text().splitlines()]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "row": json.dumps(row)} for row in rows]
    )


def reward(task: str) -> Any:
    """Return the reward of a task as TRL calls it."""

    total = load_reward(run.REMEMBERED[task].reward)

    def score(
        completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], row: Sequence[str], **_: Any
    ) -> list[float]:
        inputs = []
        for messages, ids, text in zip(completions, completion_ids, row, strict=True):
            columns = json.loads(text)
            inputs.append(
                RewardInput(
                    prompt=columns["prompt"],
                    completion=messages[0]["content"],
                    answer=columns.get("answer"),
                    columns=columns,
                    completion_ids=ids,
                )
            )
        return [each.value for each in total(inputs)]

    return score


def append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def line_of(log: Path) -> dict[str, Any]:
    """Return the curve of a log; of a step that was made twice, the last entry counts."""
    steps: dict[int, dict[str, Any]] = {}
    for entry in map(json.loads, log.read_text().splitlines()):
        steps[entry["step"]] = steps.get(entry["step"], {}) | entry
    ordered = [steps[step] for step in sorted(steps) if "seconds" in steps[step]]
    names = {"reward": "reward", "length": "completions/mean_length", "entropy": "entropy"}
    curve = {short: [run.rounded(each["logged"].get(name)) for each in ordered] for short, name in names.items()}
    seconds = [run.rounded(each["seconds"]) for each in ordered]
    return {"curve": curve | {"seconds": seconds}, "tokens": ordered[-1]["logged"].get("num_tokens")}


def main() -> None:
    """Train, and write the line."""
    task, seed, rate, model, folder, threads = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    line = train(task, int(seed), float(rate), model, Path(folder), int(threads))
    (Path(folder) / "line.json").write_text(json.dumps(line))


if __name__ == "__main__":
    main()
