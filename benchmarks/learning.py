"""Measure how long outdo and TRL train until the quickstart's model is right, from the same warm start.

    python benchmarks/learning.py [--seeds 0 1 2] [--lr 5e-5 1e-4 2e-4] [--only outdo trl]

In each step both sample 32 questions x 8 answers of at most 48 tokens at temperature 1, and make one AdamW step on them
in float32. The questions are the same. After each step the same evaluation computes the share of right greedy answers
to the held-out sums; the clock does not count it. A run ends at 90 % or after 100 steps. There is a run for each
learning rate and seed; each library is compared at the learning rate with its shortest mean time. TRL has its fastest
settings on this machine (`trl-tuned` of `make bench`). One run at a time, each in its own process, with as many threads
as there are cores. Results are appended to a file; a run that is in the file is not made again.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import tasks
import torch

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import questions_from
from outdo.loop import in_turn, train
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.rewards.exact import exact
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.run.evaluation.evaluation import evaluate

RESULTS = tasks.HERE / "learning.jsonl"
ENOUGH, STEPS = 0.9, 100
PROMPTS, GROUP, LONGEST = 32, 8, 48
Files = dict[str, Path]


def main() -> None:
    """Make the missing runs, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-5, 1e-4, 2e-4])
    parser.add_argument("--only", nargs="+", default=["outdo", "trl"], choices=["outdo", "trl"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    parser.add_argument("--results", type=Path, default=RESULTS)
    # --run makes one run in this process: the command starts itself again with it for each run.
    parser.add_argument("--run", nargs=3, metavar=("WHO", "LR", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        who, lr, seed = arguments.run[0], float(arguments.run[1]), int(arguments.run[2])
        tasks.append(arguments.results, {"who": who, "lr": lr, "seed": seed} | run(who, lr, seed, arguments))
        return
    wanted = [
        {"who": who, "lr": lr, "seed": seed}
        for seed in arguments.seeds
        for lr in arguments.lr
        for who in arguments.only
    ]
    for each in tasks.missing(arguments.results, wanted):
        tasks.prepared(tasks.QUICKSTART, each["seed"], arguments.models)
        command = [sys.executable, __file__, *sys.argv[1:], "--run", *map(str, (each["who"], each["lr"], each["seed"]))]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})
        print(description(tasks.done(arguments.results)[-1]), flush=True)
    show(tasks.done(arguments.results))


def run(who: str, lr: float, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make one run. Return the seconds until enough answers were right (None: never), the steps, and the curve."""
    torch.set_num_threads(arguments.threads)
    files = tasks.prepared(tasks.QUICKSTART, seed, arguments.models)
    curve = {"outdo": outdo, "trl": trl}[who](files, lr, seed)
    reached = [point["seconds"] for point in curve if point["right"] >= ENOUGH]
    return {"seconds": reached[0] if reached else None, "steps": curve[-1]["step"], "curve": curve}


class Stopwatch:
    """Counts the seconds of training without those of evaluation, and keeps the accuracy after each step."""

    def __init__(self, accuracy: Callable[[], float]) -> None:
        self.accuracy = accuracy
        self.seconds = 0.0
        self.curve: list[dict[str, float]] = [{"step": 0, "seconds": 0.0, "right": accuracy()}]
        self.since = time.perf_counter()

    def finish(self, step: int) -> bool:
        """Evaluate after a step; return whether the run ends here."""
        self.seconds += time.perf_counter() - self.since
        self.curve.append({"step": step, "seconds": self.seconds, "right": self.accuracy()})
        self.since = time.perf_counter()
        return step >= STEPS or self.curve[-1]["right"] >= ENOUGH


def greedy_accuracy(policy: Policy, files: Files) -> float:
    """Return the share of held-out questions whose greedy answer is right."""
    held_out = tokenise(questions_from(str(files["held_out"])), policy.tokenizer)
    reward = load_reward("exact")
    try:
        sampling = SamplingParams(temperature=0.0, max_tokens=LONGEST)
        return evaluate(BuiltinEngine(policy), SingleTurn(reward), held_out, sampling).accuracy
    finally:
        reward.close()


def outdo(files: Files, lr: float, seed: int) -> list[dict[str, float]]:
    """Train with outdo; return the curve."""
    policy = Policy.load(files["model"], device="cpu", optimiser=OptimiserSettings(lr=lr))
    objective = grpo(beta=0.0)
    prompts = Prompts(tokenise(questions_from(str(files["questions"])), policy.tokenizer), per_step=PROMPTS, seed=seed)
    reward = load_reward("exact")
    sampling = SamplingParams(max_tokens=LONGEST)
    sampler = GroupSampler(BuiltinEngine(policy, seed=seed), SingleTurn(reward), group_size=GROUP, sampling=sampling)
    watch = Stopwatch(partial(greedy_accuracy, policy, files))
    rollouts = in_turn(policy, prompts, sampler)
    steps = train(Models.of(policy, objective), rollouts, per_token(group_standardised), objective)
    next(step.index for step in steps if watch.finish(step.index))
    reward.close()
    return watch.curve


def trl(files: Files, lr: float, seed: int) -> list[dict[str, float]]:
    """Train with TRL; return the curve. outdo's evaluation uses the same weights, without a copy."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    # The policy is for the evaluation, and so that both libraries load the model in the same way.
    policy = Policy.load(files["model"], device="cpu")
    rows = [json.loads(text) for text in files["questions"].read_text().splitlines()]
    watch: Stopwatch | None = None

    class Evaluation(TrainerCallback):
        def on_train_begin(self, *args: Any, **others: Any) -> None:
            nonlocal watch
            watch = Stopwatch(partial(greedy_accuracy, policy, files))

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            assert watch is not None
            control.should_training_stop = watch.finish(state.global_step)

    def reward(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
        return [float(exact(*pair)) for pair in zip(completions, answer, strict=True)]

    with TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=LONGEST,
            max_steps=STEPS,
            learning_rate=lr,
            lr_scheduler_type="constant",
            loss_type="grpo",
            beta=0.0,
            seed=seed,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data, tokenizer = Dataset.from_list(rows), policy.tokenizer
        trainer = GRPOTrainer(
            model=policy.model,
            args=config,
            reward_funcs=reward,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[Evaluation()],
        )
        trainer.train()
    assert watch is not None
    return watch.curve


def description(run: dict[str, Any]) -> str:
    """Describe a run in one line."""
    last = run["curve"][-1]
    duration = f"{run['seconds']:.1f} s" if run["seconds"] else f"not in {last['seconds']:.1f} s"
    name = f"{run['who']:6} lr {run['lr']:g} seed {run['seed']}"
    return f"{name}: {duration}, {run['steps']} steps, {last['right']:.1%} right"


def show(runs: Sequence[dict[str, Any]]) -> None:
    """Print the means over the seeds, and compare both at their best learning rates."""
    best: dict[str, float] = {}
    for (who, lr), same in itertools.groupby(sorted(runs, key=library_and_lr), key=library_and_lr):
        times = [run["seconds"] or float("inf") for run in same]
        best[who] = min(best.get(who, float("inf")), fmean(times))
        print(f"{who:6} lr {lr:g}: {fmean(times):.1f} s ({min(times):.1f} to {max(times):.1f}), {len(times)} seeds")
    if {"outdo", "trl"} <= best.keys():
        print(f"until {ENOUGH:.0%} are right, TRL takes {best['trl'] / best['outdo']:.2f} times as long as outdo")


def library_and_lr(run: dict[str, Any]) -> tuple[str, float]:
    return run["who"], run["lr"]


if __name__ == "__main__":
    main()
