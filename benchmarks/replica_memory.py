"""Measure the peak memory of replicas beside what `outdo plan` estimates: `python benchmarks/replica_memory.py`.

Each way trains a new model for two optimiser steps, on processors in float32: with whole and divided weights, parts in
main memory, adapters on a divided base, shared sequences, reward models. All replicas measure by how many bytes their
memory grows, from before a model is read to after the steps. A tiny model comes first, so that libraries and their
buffers are there. Prints a table: bytes of the largest replica, the estimate, and its error.

    python benchmarks/replica_memory.py [--hidden 384] [--layers 8] [--tokens 400] [--json]

With `--replicas 1 2 4` one model is trained whole by one process and divided among 2 and 4, in turns. Each replica has
two answers, however many there are. The table says what a replica holds in tensors between two steps.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes
from memory import build
from torch.distributed.tensor import DTensor

from outdo.algorithms.objectives.presets import grpo
from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.extras.plan.hardware import Cluster, card_named
from outdo.extras.plan.layout import ParallelLayout
from outdo.extras.plan.problem import Problem
from outdo.extras.plan.shapes import shape_of
from outdo.extras.plan.workload import workload_of
from outdo.extras.replicas.join import replicas_for
from outdo.extras.replicas.launch import RENDEZVOUS
from outdo.extras.replicas.replicas import Replicas, join
from outdo.extras.reward_models.model import RewardModel
from outdo.models.adapter import adapter_config
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.rewards.comparisons import Comparison
from outdo.run.check import cost
from outdo.run.check.reward_memory import reward_memory, reward_sizes
from outdo.types import Batch
from outdo.utils.world import ALONE

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
TWO = 2
"""The replicas, if nothing else is asked for."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train; the settings that make it."""

    name: str
    settings: tuple[str, ...]
    reward: bool = False  # the reward model is measured, not the policy


WHOLE, DIVIDED = Way("whole models", ()), Way("divided", (SHARD,))
WAYS = (
    WHOLE,
    DIVIDED,
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


def measured(
    folder: Path, hidden: int, layers: int, tokens: int, ways: tuple[Way, ...] = WAYS, count: int = TWO
) -> list[dict[str, Any]]:
    """Return the bytes of each way with `count` replicas: the peak, the tensors after the steps, and the estimate.

    Models are written into `folder`.
    """
    for name, size, depth in (("", hidden, layers), ("tiny-", 64, 1)):
        build(folder / f"{name}model", size, depth, 264)
        RewardModel.from_policy(folder / f"{name}model", device="cpu").save(folder / f"{name}classifier")
    processes.start_processes(_replica, (str(folder), tokens, ways, count), nprocs=count)
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def _replica(rank: int, folder: str, tokens: int, ways: tuple[Way, ...], count: int) -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)  # freed memory is given back at once
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": "lo"}
    os.chdir(folder)
    os.environ[RENDEZVOUS] = Path(folder, "rendezvous").as_uri()
    found = []
    with join(timeout=600) as replicas:
        for way in ways:
            recipe = recipe_of(way, tokens, count)
            body, model = (learn, "classifier") if way.reward else (train, "model")
            body(recipe, replicas, f"tiny-{model}", 8)
            with memory() as grown:
                trained = body(recipe, replicas, model, tokens)
            sizes = replicas.together(lambda grown=grown: (grown.peak, grown.own, grown.tensors))
            peak, own, tensors = map(max, zip(*sizes, strict=True))
            del trained
            if replicas.first:
                print(way.name, flush=True, file=sys.stderr)
            sizes = {"measured": peak, "own": own, "tensors": tensors, "estimate": estimate(recipe, way)}
            found.append({"way": way.name, "replicas": count, **sizes})
        if replicas.first:
            Path("found.json").write_text(json.dumps(found), encoding="utf-8")


def recipe_of(way: Way, tokens: int, count: int) -> Recipe:
    """Return the recipe of a way: a step with an answer of so many tokens for each replica, and at least two."""
    settings = ["model=model", "data.path=questions.jsonl", f"cluster.replicas={count}", "device=cpu"]
    settings += ["train.prompts=1", f"train.group_size={max(2, count)}", "train.objective={name = 'grpo', beta = 0.0}"]
    settings += ["precision=float32", "optim.algorithm=adamw", f"train.micro_batch_tokens={tokens + PROMPT}"]
    return load(None, [*settings, f"data.max_prompt_tokens={PROMPT}", f"sampling.max_tokens={tokens}", *way.settings])


def train(recipe: Recipe, replicas: Replicas, folder: str, tokens: int) -> Policy:
    """Read a policy and take optimiser steps with two answers for each replica, one in a micro-batch; return it.

    Where two replicas share sequences, a micro-batch has two.
    """
    adapter = recipe.train.adapter and adapter_config("lora", r=recipe.train.adapter.options["rank"])
    policy = Policy.load(
        folder,
        device="cpu",
        world=replicas_for(recipe, timeout=replicas.timeout),
        adapter=adapter,
        weights="bfloat16" if recipe.weights == "bfloat16" else "float32",
        gradient_checkpointing=recipe.train.gradient_checkpointing,
        batch_sizes=BatchSizes(micro_batch_tokens=tokens + PROMPT),
    )
    batch = answers(tokens, len(replicas))
    for _ in range(STEPS):
        policy.update(batch.with_(old_logprobs=policy.logprobs(batch)), grpo(beta=0.0))
    return policy


def answers(tokens: int, questions: int) -> Batch:
    """Return a batch with two answers to each question, of which one is better."""
    rows = 2 * questions
    ids = [tuple(5 + (7 * place + row) % 200 for place in range(tokens)) for row in range(rows)]
    batch = Batch.of_tokens([tuple(range(5, 5 + PROMPT))] * rows, ids, group=[row // 2 for row in range(rows)])
    signs = torch.tensor([1.0, -1.0]).repeat(questions)[:, None]
    return batch.with_(advantages=signs * batch.loss_mask)


def learn(recipe: Recipe, replicas: Replicas, folder: str, tokens: int) -> RewardModel:
    """Read a reward model and score an answer for each replica; let it learn from them if the recipe says so."""
    world = replicas_for(recipe, timeout=replicas.timeout)
    model = RewardModel.load(folder, device="cpu", world=world if world.divides_models else ALONE)
    model.scores([[7] * (tokens + PROMPT)] * len(replicas))
    if "labels" in recipe.rewards[0].options:
        pair = Comparison(prompt="1+2=", completions=("3" * tokens, "4" * tokens), values=(1.0, 0.0))
        for _ in range(STEPS):
            model.update([pair] * 2)
    return model


def estimate(recipe: Recipe, way: Way) -> int:
    """Return the bytes that a plan expects on a device, with its part of main memory if that is used."""
    count = recipe.cluster.world_size
    if way.reward:
        parts = reward_memory(reward_sizes(recipe), recipe)
        return cost.peak(parts) - parts.get("copy of the last finished step", 0)  # nothing is saved here
    shape, _ = shape_of("model")
    cluster = Cluster(count, card_named("H100"))
    work = replace(workload_of(recipe, shape.facts)[0], precise=True)
    problem = Problem(shape=shape, cluster=cluster, work=work, recipe=recipe, reference=False)
    layout = ParallelLayout(kind="sharded", trainers=count, samplers=count)
    layout = problem.plain(layout, count if recipe.cluster.shard else 1)
    return cost.peak(problem.trainer(layout)) + sum(problem.main_memory(layout).values()) // count


@dataclass(slots=True)
class Grown:
    """By how many bytes the memory of this process has grown."""

    peak: int = 0
    own: int = 0  # the peak without pages of files that it only reads, which Linux takes back when memory is short
    tensors: int = 0  # at the end, in tensors


@contextmanager
def memory() -> Iterator[Grown]:
    """Measure by how many bytes the memory of this process grows in a `with` block, with mapped weights."""

    def now() -> tuple[int, int]:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        total, own = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "RssAnon"))
        assert total is not None
        assert own is not None
        return int(total[1]) * 1024, int(own[1]) * 1024

    def watch() -> None:
        while not ended.wait(0.002):
            seen.append(now())

    gc.collect()
    found, ended = Grown(), threading.Event()
    before, tensors = now(), tensor_bytes()
    seen = [before]
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
        seen.append(now())
        totals, owns = zip(*seen, strict=True)
        found.peak, found.own = max(totals) - before[0], max(owns) - before[1]
        gc.collect()
        found.tensors = tensor_bytes() - tensors


def tensor_bytes() -> int:
    """Return the bytes of all tensors of this process; of those that share memory, the largest counts.

    A part of a weight is a view of the whole one in its file, of which nothing else is in memory of this process.
    """
    largest: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and not isinstance(each, DTensor):  # its part is a tensor too
            place, size = each.untyped_storage().data_ptr(), each.numel() * each.element_size()
            largest[place] = max(size, largest.get(place, 0))
    return sum(largest.values())


def main() -> None:
    """Measure every way, or one model with several numbers of replicas, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="of each of two answers")
    parser.add_argument("--replicas", type=int, nargs="+", help="divide one model among so many, in turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each row")
    asked = parser.parse_args()
    found = []
    for count in asked.replicas or [TWO]:
        ways = WAYS if asked.replicas is None else (DIVIDED if count > 1 else WHOLE,)
        with tempfile.TemporaryDirectory() as folder:
            found += measured(Path(folder), asked.hidden, asked.layers, asked.tokens, ways, count)
    if asked.json:
        print("\n".join(map(json.dumps, found)))
        return
    print(table(found) if asked.replicas is None else table_of_replicas(found))


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each way: the peak, and the estimate with its error."""
    lines = ["| | measured | estimate |\n|---|---|---|"]
    for each in found:
        size, expected = each["measured"] / MIB, each["estimate"] / MIB
        lines.append(f"| {each['way']} | {size:.0f} MiB | {expected:.0f} MiB ({expected / size - 1:+.0%}) |")
    return "\n".join(lines)


def table_of_replicas(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each number of replicas: what each holds between steps, and at most; in brackets, relative to
    the first row. Pages of files that a replica only reads are left out."""
    lines = ["| replicas | tensors between steps | more in a step | peak |\n|---|---|---|---|"]
    for each in found:
        sizes = [(row["tensors"], row["own"] - row["tensors"], row["own"]) for row in (each, found[0])]
        cells = [f"{size / MIB:.0f} MiB ({size / first:.2f})" for size, first in zip(*sizes, strict=True)]
        lines.append(f"| {each['replicas']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
