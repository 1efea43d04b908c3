"""Seconds of an update with and without deterministic algorithms, in turn, in one process on a CPU.

    python benchmarks/deterministic.py --model FOLDER [--threads 2] [--rounds 10]

The update is that of 2 questions x 4 answers x 16 tokens after prompts of 48 tokens. `filled` is what
`torch.utils.deterministic.fill_uninitialized_memory` adds, which outdo switches off. Each round makes one update in
each way, in another order than the round before.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

import torch

from outdo import Batch, FinishReason, Group, Policy, Prompt, Rollout, group_standardised, grpo, per_token
from outdo.models.device import make_deterministic

PROMPT, ANSWER = 48, 16
WAYS = ("off", "on", "filled")


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a language model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    policy = Policy.load(str(arguments.model), device="cpu")
    batch = answers(policy)
    objective = grpo(beta=0.0)
    policy.update(batch, objective)
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    work: dict[str, list[float]] = {way: [] for way in WAYS}
    for _, order in zip(range(arguments.rounds), itertools.cycle(itertools.permutations(WAYS)), strict=False):
        for way in order:
            switch(way)
            clocks = time.perf_counter(), time.process_time()
            policy.update(batch, objective)
            wall[way].append(time.perf_counter() - clocks[0])
            work[way].append(time.process_time() - clocks[1])
    for way in WAYS:
        numbers = (statistics.median(wall[way]), min(wall[way]), statistics.median(work[way]), min(work[way]))
        named = zip(("median", "least", "of the processor: median", "least"), numbers, strict=True)
        print(f"{way}: " + ", ".join(f"{name} {value:.3f} s" for name, value in named))


def switch(way: str) -> None:
    """Let torch use any algorithm, deterministic ones only, or these with memory that is filled."""
    if way == "off":
        torch.set_deterministic_debug_mode("default")
    else:
        make_deterministic("cpu")
        torch.utils.deterministic.fill_uninitialized_memory = way == "filled"  # pyright: ignore


def answers(policy: Policy) -> Batch:
    """Return a batch of random tokens that is ready for an update."""
    random = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, len(policy.tokenizer), (count,), generator=random).tolist())

    def rollout(reward: float) -> Rollout:
        return Rollout(
            token_ids=tokens(ANSWER),
            loss_mask=(True,) * ANSWER,
            logprobs=(-1.0,) * ANSWER,
            text="",
            reward=reward,
            finish_reason=FinishReason.length,
            policy_version=0,
        )

    groups = [
        Group(
            prompt=Prompt(id=str(number), text="", token_ids=tokens(PROMPT)),
            rollouts=tuple(rollout(float(sample % 2)) for sample in range(4)),
        )
        for number in range(2)
    ]
    batch = per_token(group_standardised)(Batch.from_groups(groups))
    logprobs = policy.logprobs(batch)
    return batch.with_(old_logprobs=logprobs, ref_logprobs=logprobs)


if __name__ == "__main__":
    main()
