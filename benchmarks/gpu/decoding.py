"""Captured decoding steps beside eager ones: python -m benchmarks.gpu.decoding cuda

Prints a JSON object: of each number of rows for which steps are captured, what is wrong with them; how often the host
waits for the device in a step; and, of a model as large as SmolLM2-135M, the tokens a second of eager and of captured
steps.
"""

import json
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from outdo.models.device import Precision
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import PolicySnapshot
from outdo.rollouts.engines.limits import HOST_READS_EVERY, SEQUENCES_AT_A_TIME
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule
from outdo.rollouts.fast.continuous_batching import ContinuousBatch
from outdo.rollouts.fast.device_steps import CAPTURES, Capture
from outdo.testing import tiny_model
from outdo.types import Request
from outdo.utils.rng import Stream, stream_key

ROWS = (1, 8, 64)
PROMPTS = 4


class Answers(NamedTuple):
    """What a batch has sampled."""

    token_ids: list[list[int]]
    logprobs: torch.Tensor
    captured: list[int]  # the numbers of rows whose steps were captured
    seconds: float


@torch.no_grad()
def answers(policy: Policy, rows: int, tokens: int, capture: Capture | None) -> Answers:
    """Sample so many answers of so many tokens each, with steps that are captured or eager."""
    view = replace(PolicySnapshot.of(policy), end_ids=frozenset())
    sampling = SamplingParams(max_tokens=tokens)
    streams = [Stream("gpu", 0, str(row % PROMPTS), row) for row in range(rows)]
    asked = [
        Request(token_ids=tuple(range(5, 13 + row % PROMPTS)), stream=each, max_tokens=tokens)
        for row, each in enumerate(streams)
    ]
    sequences = [SequenceState(each, stream_key(0, each.stream), tokens) for each in asked]
    start = time.perf_counter()
    with policy.forward.prepared(packed=True):
        batch = ContinuousBatch(view, sampling, StopRule(view, sampling), rows, capture=capture)
        batch.run(sequences)
    return Answers(
        [each.token_ids for each in sequences],
        torch.tensor([each.logprobs for each in sequences]),
        [count for count, steps in batch.steps.items() if steps.replay is not None],
        time.perf_counter() - start,
    )


@contextmanager
def host_waits() -> Iterator[list[Any]]:
    """Yield a list, to which each wait of the host for the device in a `with` block is added."""
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield waits
        torch.cuda.set_sync_debug_mode("default")


def buckets(policy: Policy, capture: Capture, largest: int) -> dict[int, str]:
    """Return for each number of rows for which steps are captured what is wrong with them; empty texts if nothing is.

    The first step runs before it is captured.
    """
    faults = {}
    for rows in [2**power for power in range(largest.bit_length())]:
        eager, captured = (answers(policy, rows, 1 + 2 * HOST_READS_EVERY, each) for each in (None, capture))
        gap = float((eager.logprobs - captured.logprobs).abs().max())
        fault = "" if rows in captured.captured else "it was not captured"
        fault = fault or ("" if eager.token_ids == captured.token_ids else "other token_ids")
        faults[rows] = fault or ("" if gap < policy.forward.tolerance(1e-4) else f"{gap:.2g} nats apart")
    return faults


def waits_of_a_step(policy: Policy, rows: int, capture: Capture) -> float:
    """Return how often the host waits for the device in a step, the start of the answers not counted."""
    counts = []
    for looks in (1, 3):
        with host_waits() as waits:
            answers(policy, rows, 1 + looks * HOST_READS_EVERY, capture)
        counts.append(len(waits))
    return (counts[1] - counts[0]) / (2 * HOST_READS_EVERY)


def speeds(policy: Policy, rows: int, capture: Capture, tokens: int) -> list[float]:
    """Return the tokens a second of eager and of captured steps, each after a batch that warms up."""
    found = []
    for how in (None, capture):
        answers(policy, rows, 1 + 2 * HOST_READS_EVERY, how)
        found.append(rows * tokens / answers(policy, rows, tokens, how).seconds)
    return found


def measured(device: str, largest: int = SEQUENCES_AT_A_TIME, tokens: int = 256, **size: Any) -> dict[str, Any]:
    """Return all that is measured on a device; speed by answers of so many tokens, of a model of this size."""
    capture = CAPTURES[device]

    def policy(precision: Precision, **size: Any) -> Policy:
        model, tokenizer = tiny_model(**size)
        nn.Module.to(model, device)
        return Policy(model, tokenizer, precision=precision)

    small, large = policy("float32", hidden=128), policy("auto", **size)
    return {
        "buckets": buckets(small, capture, largest),
        "waits": {rows: waits_of_a_step(small, rows, capture) for rows in ROWS},
        "speeds": {rows: speeds(large, rows, capture, tokens) for rows in ROWS},
    }


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], vocab=49152, hidden=576, layers=30)))
