"""The same training by TRL's GRPOTrainer: python -m benchmarks.smollm2.trl_run TASK SEED LR MODEL FOLDER

outdo evaluates the same weights, without a copy; the clock does not count it.
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
from outdo.data.prompts import tokenise
from outdo.data.questions import questions_from
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.rewards.types import RewardInput
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.run.evaluation.evaluation import evaluate

SAVE = 20


def of_trl(wanted: Planned, folder: Path, model: Path) -> dict[str, Any]:
    """Make what is missing of a run; return its line of the results. Raises `InterruptedRunError`."""
    arguments = [wanted.task, str(wanted.seed), str(wanted.lr), str(model), str(folder)]
    usage = run.process([sys.executable, "-m", "benchmarks.smollm2.trl_run", *arguments], folder)
    return json.loads((folder / "line.json").read_text()) | usage


def train(task: str, seed: int, rate: float, model: str, folder: Path) -> dict[str, Any]:
    """Train with the settings of the task's recipe; return the curve and the evaluations."""
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from transformers import TrainerCallback

    torch.set_num_threads(2)
    recipe = tomllib.loads((run.EXAMPLES / f"{task}.toml").read_text())
    policy = Policy.load(model, device="cpu")
    rows = [json.loads(line) for line in Path(recipe["data"]["path"]).read_text().splitlines()]
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "row": json.dumps(row)} for row in rows]
    )
    log = folder / "steps.jsonl"

    class Watch(TrainerCallback):
        """Keeps the seconds of each step, and evaluates as often as the recipe says."""

        def on_step_begin(self, *args: Any, **others: Any) -> None:
            self.since = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            entry: dict[str, Any] = {"step": state.global_step, "seconds": time.perf_counter() - self.since}
            if state.global_step % recipe["eval"]["every"] == 0:
                entry["evaluation"] = evaluated(policy, recipe)
            append(log, entry)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if logs and "reward" in logs:
                append(log, {"step": state.global_step, "logged": logs})

    config = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=recipe["train"]["prompts"] * recipe["train"]["group_size"],
        num_generations=recipe["train"]["group_size"],
        max_completion_length=recipe["sampling"]["max_tokens"],
        max_steps=recipe["steps"],
        learning_rate=rate,
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="steps",
        save_steps=SAVE,
        save_total_limit=1,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        model=policy.model,
        args=config,
        reward_funcs=reward(task),
        train_dataset=data,
        processing_class=policy.tokenizer,
        callbacks=[Watch()],
    )
    trainer.train(resume_from_checkpoint=bool(list((folder / "trl").glob("checkpoint-*"))) or None)
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return line_of(log) | {"versions": versions}


def reward(task: str) -> Any:
    """Return the reward of a task as TRL calls it."""

    total = load_reward(run.REWARDS[task])

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


def evaluated(policy: Any, recipe: dict[str, Any]) -> dict[str, float]:
    """Return the mean reward of the greedy answers to the two held-out sets."""

    task = Path(recipe["data"]["path"]).parent.name
    total, found = load_reward(run.REWARDS[task]), {}
    sampling = SamplingParams(temperature=0.0, max_tokens=recipe["sampling"]["max_tokens"])
    for name, path in recipe["data"]["eval_path"].items():
        prompts = tokenise(questions_from(path), policy.tokenizer)
        metrics = evaluate(BuiltinEngine(policy), SingleTurn(total), prompts, sampling).metrics("greedy")
        found[f"{name}/greedy_reward"] = metrics["greedy_reward"]
    total.close()
    return found


def append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def line_of(log: Path) -> dict[str, Any]:
    """Return the curve and the evaluations of a log; of a step that was made twice, the last entry."""
    steps: dict[int, dict[str, Any]] = {}
    for entry in map(json.loads, log.read_text().splitlines()):
        steps[entry["step"]] = steps.get(entry["step"], {}) | entry
    ordered = [steps[step] for step in sorted(steps) if "seconds" in steps[step]]
    names = {"reward": "reward", "length": "completions/mean_length", "entropy": "entropy"}
    curve = {short: [run.rounded(each["logged"].get(name)) for each in ordered] for short, name in names.items()}
    evaluations = [{"step": each["step"], **each["evaluation"]} for each in ordered if "evaluation" in each]
    tokens = ordered[-1]["logged"].get("num_tokens")
    return {
        "curve": curve | {"seconds": [run.rounded(each["seconds"]) for each in ordered]},
        "evaluations": evaluations,
        "tokens": tokens,
    }


def main() -> None:
    """Train, and write the line."""
    task, seed, rate, model, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    line = train(task, int(seed), float(rate), model, Path(folder))
    (Path(folder) / "line.json").write_text(json.dumps(line))


if __name__ == "__main__":
    main()
