"""Measure the peak memory of two replicas beside what `outdo plan` estimates: `python benchmarks/replica_memory.py`.

Each way trains a new model for two optimiser steps, on processors in float32: with whole and divided weights, parts in
main memory, adapters on a divided base, shared sequences, reward models. Both replicas measure by how many bytes their
memory grows, from before a model is read to after the steps. A tiny model comes first, so that libraries and their
buffers are there. Prints a table: bytes of the larger replica, the estimate, and its error.

    python benchmarks/replica_memory.py [--hidden 384] [--layers 8] [--tokens 400] [--json]
"""

import argparse
import ctypes
import gc
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes
from memory import build

from outdo.algorithms.objectives.presets import grpo
from outdo.config.attention import sequence_replicas
from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.distributed.launch import RENDEZVOUS
from outdo.distributed.lockstep import LockstepReplicas, sequence_group
from outdo.distributed.replicas import Replicas, join
from outdo.distributed.sharding import DividingReplicas
from outdo.models.adapter import adapter_config
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.planning.hardware import Cluster, card_named
from outdo.planning.layout import Layout
from outdo.planning.problem import Problem
from outdo.planning.shapes import shape_of
from outdo.planning.workload import workload_of
from outdo.rewards.comparisons import Comparison
from outdo.rewards.model import RewardModel
from outdo.trainer import cost
from outdo.trainer.reward_memory import reward_memory, reward_sizes
from outdo.types import Batch

REPLICAS = 2
STEPS = 2
"""Moments exist from the end of the first optimiser step on."""

PROMPT = 8
M_MMAP_THRESHOLD = -3
CPU = torch.device("cpu")
MIB = 2**20
LORA = 'train.adapter={name = "lora", rank = 16}'
SHARD, OFFLOAD = "cluster.shard=true", "cluster.shard={offload = true}"
REWARD = "rewards={{name = 'reward_model', path = 'classifier'{}}}"
LEARNS = ", labels = 'exact', every = 1, batch = 2"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train; the settings that make it."""

    name: str
    settings: tuple[str, ...]
    reward: bool = False  # the reward model is measured, not the policy


WAYS = (
    Way("whole models", ()),
    Way("divided", (SHARD,)),
    Way("divided, parts in main memory", (OFFLOAD,)),
    Way("divided, gradient checkpointing", (SHARD, "train.gradient_checkpointing=true")),
    Way("LoRA", (LORA,)),
    Way("LoRA on a divided base", (LORA, SHARD)),
    Way("LoRA on a divided base in bfloat16", (LORA, SHARD, "weights=bfloat16")),
    Way("shared sequences", ("attention=ulysses",)),
    Way("shared sequences, gradient checkpointing", ("attention=ulysses", "train.gradient_checkpointing=true")),
    Way("shared sequences, divided", ("attention=ulysses", SHARD)),
    Way("reward model", (REWARD.format(""),), reward=True),
    Way("reward model, divided", (REWARD.format(""), SHARD), reward=True),
    Way("reward model that learns", (REWARD.format(LEARNS),), reward=True),
    Way("reward model that learns, divided", (REWARD.format(LEARNS), SHARD), reward=True),
)


def measured(folder: Path, hidden: int, layers: int, tokens: int, ways: tuple[Way, ...] = WAYS) -> list[dict[str, Any]]:
    """Return the bytes of each way, measured and estimated, with models that are written into `folder`."""
    for name, size, depth in (("", hidden, layers), ("tiny-", 64, 1)):
        build(folder / f"{name}model", size, depth, 264)
        RewardModel.from_policy(folder / f"{name}model", device="cpu").save(folder / f"{name}classifier")
    processes.start_processes(_replica, (str(folder), tokens, ways), nprocs=REPLICAS)
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def _replica(rank: int, folder: str, tokens: int, ways: tuple[Way, ...]) -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)  # freed memory is given back at once
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(REPLICAS), "GLOO_SOCKET_IFNAME": "lo"}
    os.chdir(folder)
    os.environ[RENDEZVOUS] = Path(folder, "rendezvous").as_uri()
    found = []
    with join(timeout=600) as replicas:
        for way in ways:
            recipe = recipe_of(way, tokens)
            body, model = (learn, "classifier") if way.reward else (train, "model")
            body(recipe, replicas, f"tiny-{model}", 8)
            with peak_memory() as peak:
                body(recipe, replicas, model, tokens)
            both = replicas.together(lambda peak=peak: peak[0])
            if replicas.first:
                print(way.name, flush=True, file=sys.stderr)
            found.append({"way": way.name, "measured": max(both), "estimate": estimate(recipe, way)})
        if replicas.first:
            Path("found.json").write_text(json.dumps(found), encoding="utf-8")


def recipe_of(way: Way, tokens: int) -> Recipe:
    """Return the recipe of a way: a step with two answers of so many tokens to one question."""
    settings = ["model=model", "data.path=questions.jsonl", f"cluster.replicas={REPLICAS}", "device=cpu"]
    settings += ["train.prompts=1", f"train.group_size={REPLICAS}", "train.objective={name = 'grpo', beta = 0.0}"]
    settings += ["precision=float32", "optim.algorithm=adamw", f"train.micro_batch_tokens={tokens + PROMPT}"]
    return load(None, [*settings, f"data.max_prompt_tokens={PROMPT}", f"sampling.max_tokens={tokens}", *way.settings])


def train(recipe: Recipe, replicas: Replicas, folder: str, tokens: int) -> None:
    """Read a policy and take optimiser steps with four answers, each a micro-batch of one replica or half of both."""
    adapter = recipe.train.adapter and adapter_config("lora", r=recipe.train.adapter.options["rank"])
    policy = Policy.load(
        folder,
        device="cpu",
        pool=_pool(recipe, replicas),
        adapter=adapter,
        weights="bfloat16" if recipe.weights == "bfloat16" else "float32",
        gradient_checkpointing=recipe.train.gradient_checkpointing,
        batch_sizes=BatchSizes(micro_batch_tokens=tokens + PROMPT),
    )
    batch = answers(tokens)
    for _ in range(STEPS):
        policy.update(batch.with_(old_logprobs=policy.logprobs(batch)), grpo(beta=0.0))


def answers(tokens: int) -> Batch:
    """Return a batch with two answers to each of two questions, of which one is better."""
    rows = 2 * REPLICAS
    ids = [tuple(5 + (7 * place + row) % 200 for place in range(tokens)) for row in range(rows)]
    batch = Batch.of_tokens([tuple(range(5, 5 + PROMPT))] * rows, ids, group=[row // REPLICAS for row in range(rows)])
    signs = torch.tensor([1.0, -1.0]).repeat(REPLICAS)[:, None]
    return batch.with_(advantages=signs * batch.loss_mask)


def learn(recipe: Recipe, replicas: Replicas, folder: str, tokens: int) -> None:
    """Read a reward model and score two answers; let it learn from them if the recipe says so."""
    division = _pool(recipe, replicas) if recipe.cluster.shard else None
    model = RewardModel.load(folder, device="cpu", division=division)
    model.scores([[7] * (tokens + PROMPT)] * REPLICAS)
    if "labels" in recipe.rewards[0].options:
        pair = Comparison(prompt="1+2=", completions=("3" * tokens, "4" * tokens), values=(1.0, 0.0))
        for _ in range(STEPS):
            model.update([pair] * 2)


def _pool(recipe: Recipe, replicas: Replicas) -> Any:
    """Return the replicas as the recipe says."""
    share = sequence_replicas(recipe)
    sequence = sequence_group(replicas, share) if share > 1 else None
    if recipe.cluster.shard:
        return DividingReplicas(replicas, CPU, sequence, offload=recipe.cluster.shard.offload)
    return replicas if sequence is None else LockstepReplicas(replicas, sequence)


def estimate(recipe: Recipe, way: Way) -> int:
    """Return the bytes that a plan expects on one of two devices, with their main memory if it is used."""
    if way.reward:
        parts = reward_memory(reward_sizes(recipe), recipe)
        return cost.peak(parts) - parts.get("copy of the last finished step", 0)  # nothing is saved here
    shape, _ = shape_of("model")
    cluster = Cluster(REPLICAS, card_named("H100"))
    work = replace(workload_of(recipe, shape.facts)[0], precise=True)
    problem = Problem(shape=shape, cluster=cluster, work=work, recipe=recipe, reference=False)
    layout = Layout(kind="sharded", trainers=REPLICAS, samplers=REPLICAS)
    layout = problem.plain(layout, REPLICAS if recipe.cluster.shard else 1)
    return cost.peak(problem.trainer(layout)) + sum(problem.main_memory(layout).values()) // REPLICAS


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Measure by how many bytes the memory of this process grows at most in a `with` block, with mapped weights."""

    def now() -> int:
        size = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
        assert size is not None
        return int(size[1]) * 1024

    def watch() -> None:
        while not ended.wait(0.002):
            seen.append(now())

    gc.collect()
    found, ended = list[int](), threading.Event()
    before = now()
    seen = [before]
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
        found.append(max(*seen, now()) - before)


def main() -> None:
    """Measure every way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="of each of two answers")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each way")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), asked.hidden, asked.layers, asked.tokens)
    if asked.json:
        print("\n".join(map(json.dumps, found)))
        return
    print("| | measured | estimate |\n|---|---|---|")
    for each in found:
        size, expected = each["measured"] / MIB, each["estimate"] / MIB
        print(f"| {each['way']} | {size:.0f} MiB | {expected:.0f} MiB ({expected / size - 1:+.0%}) |")


if __name__ == "__main__":
    main()
