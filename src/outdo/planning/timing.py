"""Seconds of one decoding step, of a forward and backward pass, and of a weight update.

Rooflines on published specifications, times two fractions that are fitted for each card and software (validation.py).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outdo.planning.hardware import Card
from outdo.planning.lengths import Tokens
from outdo.planning.shapes import BFLOAT16, Shape
from outdo.planning.workload import Workload

HOP = {"machine": 12e-6, "network": 40e-6}
"""Seconds of the latency of one all-reduce of a few kilobytes, within a machine and between machines."""

DECODE_HOST = 1e-3
"""Seconds of an engine's scheduler and sampler for one decoding step."""

STEP_HOST = 1.5
"""Seconds of a training step that are neither arithmetic nor transfer: rewards, batches, metrics."""

GRADIENT_BYTES = 4
"""Bytes of a weight's gradient when it is reduced: float32."""

SKEW = 0.02
"""Standard deviation of the speed of machines, as a share: synchronous work waits for the slowest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fractions:
    """The shares of a roofline that software reaches."""

    training: float  # of the peak FLOP/s
    decode: float  # of the roofline of decoding
    update: float  # of the bandwidth over which weights are sent


def decode_step(
    shape: Shape, card: Card, *, width: int, running: Any, cached: Any, weight_bytes: float = BFLOAT16
) -> Any:
    """Return the seconds of a decoding step of an engine on `width` devices, at the roofline.

    max(bytes of the touched weights and of `cached` tokens / bandwidth, FLOPs of `running` sequences / peak), and the
    latencies of two all-reduces in each layer. Keys and values are cut by heads, at most as many as there are.
    """
    read = weight_bytes * shape.touched(running) / width + cached * shape.cache_bytes / min(width, shape.kv_heads)
    flops = running * 2 * shape.active / width
    hop = HOP["machine" if width <= card.machine else "network"] if width > 1 else 0.0
    maximum = np.maximum if isinstance(running, np.ndarray) else max  # ten times as fast for numbers
    return maximum(read / card.bandwidth, flops / card.peak) + 2 * shape.layers * hop + DECODE_HOST


def prefill(shape: Shape, card: Card, work: Workload, devices: int) -> float:
    """Return the seconds in which so many devices read all prompts of a step, each once for its group, at the peak."""
    tokens = work.prompts * work.prompt_tokens * work.sampled
    return tokens * shape.forward_flops(work.prompt_tokens / 2) / (card.peak * devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How trainers are arranged."""

    devices: int
    shards: int = 1  # devices over which weights, gradients and optimiser are cut
    sequence: int = 1  # devices that compute one sequence together
    pipeline: int = 1  # stages of layers, each on devices of its own
    gathered: bool = True  # each layer is gathered before it computes (FSDP); else weights stay where they are

    @property
    def streams(self) -> int:
        """Groups of devices that compute different sequences."""
        return max(1, self.devices // (self.sequence * self.pipeline))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """Seconds of a step's scoring and training."""

    scoring: float
    training: float
    gathering: float  # the part of training in which arithmetic waits for weights or gradients


def training_time(
    shape: Shape, card: Card, work: Workload, ranks: Ranks, share: float, lengths: Tokens
) -> TrainingTime:
    """Return the seconds of scoring and training one step, at `share` of the peak.

    Each optimiser step takes as long as its busiest stream, which has at least one whole answer, however many devices
    there are. A micro-batch takes the longer of its arithmetic and of the gathering of weights. A pipeline of p stages
    takes m + p - 1 times one of m micro-batches. Machines wait for the slowest one.
    """
    tokens = lengths + work.prompt_tokens
    flops = tokens * (2 * shape.active + 4 * shape.attention * shape.heads * shape.head_dim * tokens / 2)
    busiest = _busiest(flops, work.optimiser_steps, ranks.streams)
    forward = busiest / (card.peak * share * ranks.sequence * ranks.pipeline)
    together = float(tokens.sum()) / work.optimiser_steps / ranks.streams
    rounds = max(1.0, together / (work.micro_batch_tokens * ranks.sequence))
    forward *= 1 + (ranks.pipeline - 1) / rounds
    passes = (2 if work.adapter else 3) + work.checkpointing
    weights = BFLOAT16 * shape.parameters * (ranks.shards - 1) / ranks.shards / card.reach(ranks.shards)
    gather = rounds * weights if ranks.gathered else 0.0
    waiting = max(0.0, (2 + work.checkpointing) * gather - passes * forward)
    reducing = _reducing(shape.parameters * (work.adapter or 1.0), card, ranks)
    steps, slow = work.optimiser_steps, slowest(ranks.devices, card)
    models = 1 + work.critics
    return TrainingTime(
        scoring=(work.scorings + work.critics) * steps * max(forward, gather) * slow,
        training=models * steps * work.passes * (passes * forward + waiting + reducing) * slow,
        gathering=models * steps * work.passes * (waiting + reducing) * slow,
    )


def _busiest(work: Tokens, optimiser_steps: int, streams: int) -> float:
    """Return the work of the busiest stream, as a mean over optimiser steps.

    Answers that are dealt to the least busy stream, the longest first, end within one answer of the mean. The lower
    bound is used: the larger of the longest answer and of the mean of a stream.
    """
    share = max(1, len(work) // optimiser_steps)
    parts = [work[start : start + share] for start in range(0, min(len(work), share * optimiser_steps), share)]
    return float(np.mean([max(part.max(), part.sum() / streams) for part in parts]))


def _reducing(trained: float, card: Card, ranks: Ranks) -> float:
    """Return the seconds in which gradients are summed: within the shards, and then between their copies."""
    copies = max(1, ranks.devices // ranks.shards)
    within = (ranks.shards - 1) / ranks.shards / card.reach(ranks.shards) if ranks.gathered else 0.0
    between = 2 * (copies - 1) / copies / ranks.shards / card.reach(ranks.devices)
    return GRADIENT_BYTES * trained * (within + between)


def slowest(devices: int, card: Card) -> float:
    """Return the time of the slowest of so many devices' machines as a multiple of the usual one: 1 + s √(2 log n)."""
    machines = max(1, devices // card.machine)
    return 1 + SKEW * float(np.sqrt(2 * np.log(machines)))


def update_seconds(
    shape: Shape,
    card: Card,
    share: float,
    *,
    adapter: float = 0.0,
    devices: int = 16,
    weight_bytes: float = BFLOAT16,
) -> float:
    """Return the seconds in which new weights reach all devices: each receives every byte once, at its bandwidth."""
    return weight_bytes * shape.parameters * (adapter or 1.0) / (card.reach(devices) * share)
