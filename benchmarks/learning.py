"""How long until the quickstart's model is right: outdo and TRL from the same warm start, on the same questions.

    python benchmarks/learning.py [--seeds 0 1 2] [--lr 5e-5 1e-4 2e-4] [--only outdo trl]

Both sample 32 questions x 8 answers of at most 48 tokens at temperature 1, take one AdamW step on them in float32, and
are judged after every step, outside the clock, by the same evaluation: the held-out sums that are right greedily. A
run ends at 90 % or after 100 steps. Each is run at each learning rate with each seed, and compared by the rate at which
it is quickest in the mean. TRL has the settings with which it is quickest here (`trl-tuned` of `make bench`). One run
at a time, each in a process of its own, with as many threads as there are cores. Results are appended to a file, and a
run that stands there is not made again.
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
from outdo.distributed.worker_pool import WorkerPool
from outdo.loop import train
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.rewards.exact import exact
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.builtin.multiprocess import MultiprocessEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.trainer.evaluation import evaluate

RESULTS = tasks.HERE / "learning.jsonl"
ENOUGH, STEPS = 0.9, 100
PROMPTS, GROUP, LONGEST = 32, 8, 48
Files = dict[str, Path]


def main() -> None:
    """Make the runs that are missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-5, 1e-4, 2e-4])
    parser.add_argument("--only", nargs="+", default=["outdo", "trl"], choices=["outdo", "trl"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="where warm-started models go")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--run", nargs=3, metavar=("WHO", "LR", "SEED"), help=argparse.SUPPRESS
    )  # in a process of its own
    asked = parser.parse_args()
    if asked.run:
        who, lr, seed = asked.run[0], float(asked.run[1]), int(asked.run[2])
        tasks.append(asked.results, {"who": who, "lr": lr, "seed": seed} | run(who, lr, seed, asked))
        return
    wanted = [{"who": who, "lr": lr, "seed": seed} for seed in asked.seeds for lr in asked.lr for who in asked.only]
    for each in tasks.missing(asked.results, wanted):
        tasks.prepared(tasks.QUICKSTART, each["seed"], asked.models)
        command = [sys.executable, __file__, *sys.argv[1:], "--run", *map(str, (each["who"], each["lr"], each["seed"]))]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(asked.threads)})
        print(line(tasks.done(asked.results)[-1]), flush=True)
    show(tasks.done(asked.results))


def run(who: str, lr: float, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One run: seconds until enough were right (None: never), and its curve."""
    torch.set_num_threads(asked.threads)
    files = tasks.prepared(tasks.QUICKSTART, seed, asked.models)
    curve = {"outdo": outdo, "trl": trl}[who](files, lr, seed)
    reached = [point["seconds"] for point in curve if point["right"] >= ENOUGH]
    return {"seconds": reached[0] if reached else None, "steps": curve[-1]["step"], "curve": curve}


class Watch:
    """Training's seconds, judging left out; a curve of how many are right."""

    def __init__(self, judge: Callable[[], float]) -> None:
        self.judge = judge
        self.seconds = 0.0
        self.curve: list[dict[str, float]] = [{"step": 0, "seconds": 0.0, "right": judge()}]
        self.since = time.perf_counter()

    def over(self, step: int) -> bool:
        """A step is done: judge if it is time to; whether that was enough."""
        self.seconds += time.perf_counter() - self.since
        self.curve.append({"step": step, "seconds": self.seconds, "right": self.judge()})
        self.since = time.perf_counter()
        return step >= STEPS or self.curve[-1]["right"] >= ENOUGH


def right(policy: Policy, files: Files) -> float:
    """The share of held-out questions that are right greedily."""
    held_out = tokenise(questions_from(str(files["held_out"])), policy.tokenizer)
    reward = load_reward("exact")
    try:
        sampling = SamplingParams(temperature=0.0, max_tokens=LONGEST)
        return evaluate(BuiltinEngine(policy), SingleTurn(reward), held_out, sampling).accuracy
    finally:
        reward.close()


def outdo(files: Files, lr: float, seed: int) -> list[dict[str, float]]:
    """The curve of a run of outdo."""
    pool = WorkerPool(torch.get_num_threads() - 1)  # a process for each thread, as `outdo train` has for such a model
    torch.set_num_threads(1)
    policy = Policy.load(files["model"], device="cpu", optimiser=OptimiserSettings(lr=lr), pool=pool)
    objective = grpo(beta=0.0)
    prompts = Prompts(tokenise(questions_from(str(files["questions"])), policy.tokenizer), per_step=PROMPTS, seed=seed)
    reward = load_reward("exact")
    sampling = SamplingParams(max_tokens=LONGEST)
    rollout = GroupSampler(
        MultiprocessEngine(policy, pool, seed=seed), SingleTurn(reward), group_size=GROUP, sampling=sampling
    )
    watch = Watch(partial(right, policy, files))
    steps = train(Models.of(policy, objective), prompts, rollout, per_token(group_standardised), objective)
    next(step.index for step in steps if watch.over(step.index))
    reward.close()
    pool.close()
    return watch.curve


def trl(files: Files, lr: float, seed: int) -> list[dict[str, float]]:
    """The curve of a run of TRL; its weights are judged in place, by outdo's evaluation."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    policy = Policy.load(files["model"], device="cpu")  # to judge, and to load the same model in the same way
    rows = [json.loads(text) for text in files["questions"].read_text().splitlines()]
    watch: Watch | None = None

    class Judged(TrainerCallback):
        def on_train_begin(self, *args: Any, **how: Any) -> None:
            nonlocal watch
            watch = Watch(partial(right, policy, files))

        def on_step_end(self, args: Any, state: Any, control: Any, **how: Any) -> None:
            assert watch is not None
            control.should_training_stop = watch.over(state.global_step)

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
        how = {"reward_funcs": reward, "train_dataset": data, "processing_class": tokenizer, "callbacks": [Judged()]}
        GRPOTrainer(model=policy.model, args=config, **how).train()
    assert watch is not None
    return watch.curve


def line(run: dict[str, Any]) -> str:
    """A run in a sentence."""
    last = run["curve"][-1]
    ended = f"{run['seconds']:.1f} s" if run["seconds"] else f"not in {last['seconds']:.1f} s"
    return (
        f"{run['who']:6} lr {run['lr']:g} seed {run['seed']}: {ended}, {run['steps']} steps, {last['right']:.1%} right"
    )


def show(runs: Sequence[dict[str, Any]]) -> None:
    """Means over the seeds, and how the best learning rates of both compare."""
    best: dict[str, float] = {}
    for (who, lr), same in itertools.groupby(sorted(runs, key=by_rate), key=by_rate):
        times = [run["seconds"] or float("inf") for run in same]
        best[who] = min(best.get(who, float("inf")), fmean(times))
        print(f"{who:6} lr {lr:g}: {fmean(times):.1f} s ({min(times):.1f} to {max(times):.1f}), {len(times)} seeds")
    if {"outdo", "trl"} <= best.keys():
        print(f"until {ENOUGH:.0%} are right, TRL takes {best['trl'] / best['outdo']:.2f} times as long as outdo")


def by_rate(run: dict[str, Any]) -> tuple[str, float]:
    """What is compared."""
    return run["who"], run["lr"]


if __name__ == "__main__":
    main()
