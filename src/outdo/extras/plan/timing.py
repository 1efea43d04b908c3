"""Seconds of one decoding step, of a forward and backward pass, and of a weight update.

Rooflines on published specifications, times two fractions that are fitted for each card and software (validation.py).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from outdo.extras.plan.hardware import Card
from outdo.extras.plan.lengths import Tokens
from outdo.extras.plan.shapes import BFLOAT16, Shape
from outdo.extras.plan.workload import Workload

HOP = {"machine": 12e-6, "network": 40e-6}
"""Seconds of the latency of one all-reduce of a few kilobytes, within a machine and between machines."""

DECODE_HOST = 1e-3
"""Seconds of an engine's scheduler and sampler for one decoding step."""

STEP_HOST = 1.5
"""Seconds of a training step that are neither arithmetic nor transfer: rewards, batches, metrics."""

GRADIENT_BYTES = 4
"""Bytes of a weight's gradient when it is reduced: float32."""

HOST_STEP = 20e-9
"""Seconds in which the share of a machine's processors that one device has computes the optimiser step of a weight, and
fetches its gradient. From one published run: LLaMA-7B on eight A800, DeepSpeed ZeRO-3 with its optimiser in main memory
(gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a): a step of 64 sequences takes 31.2 s instead of 14.4."""

FILE = 1e9
"""Bytes in a second that a trainer writes to main memory, and that an engine on its device reads: not measured yet."""

FLOAT32_PRODUCTS = 15
"""Times the seconds of bf16 products that those in float32 take on accelerators: 989 and 67 TFLOP/s on an H100."""

SKEW = 0.02
"""Standard deviation of the speed of machines, as a share: synchronous work waits for the slowest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fractions:
    """The shares of a roofline that software reaches."""

    training: float  # of the peak FLOP/s
    decode: float  # of the roofline of decoding
    update: float  # of the bandwidth over which weights are sent
    launch: float = 0.0  # seconds in which the host starts the kernels of a layer for one decoding step

    def decoding(self, roofline: Any, layers: int) -> Any:
        """Return the seconds of a decoding step: at the share of its roofline, or as slowly as the host starts it."""
        return _longer(roofline / self.decode, self.launch * layers)


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
    return _longer(read / card.bandwidth, flops / card.peak) + 2 * shape.layers * hop + DECODE_HOST


def _longer(first: Any, second: Any) -> Any:
    return np.maximum(first, second) if isinstance(first, np.ndarray) else max(first, second)  # ten times as fast


def prefill(shape: Shape, card: Card, work: Workload, devices: int) -> float:
    """Return the seconds in which so many devices read all prompts of a step, each once for its group, at the peak."""
    tokens = work.prompts * work.prompt_tokens * work.sampled
    return tokens * shape.forward_flops(work.prompt_tokens / 2) / (card.peak * devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How the devices that train are arranged."""

    trainers: int  # devices
    shards: int = 1  # devices over which weights, gradients and optimiser are cut
    sequence: int = 1  # devices that compute one sequence together
    pipeline: int = 1  # stages of layers, each on devices of its own
    gathered: bool = True  # each layer is gathered before it computes (FSDP); else weights stay where they are
    offload: bool = False  # the parts of weights, gradients and moments are in main memory
    gathered_bytes: float = BFLOAT16  # of a weight that is gathered
    reduced_bytes: float = GRADIENT_BYTES  # of a gradient that is summed

    @property
    def streams(self) -> int:
        """Groups of devices that compute different sequences."""
        return max(1, self.trainers // (self.sequence * self.pipeline))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """Seconds of a step's scoring and training."""

    scoring: float
    training: float
    gathering: float  # the part of training in which arithmetic waits for weights, gradients, tokens or main memory


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
    gather = rounds * _gathering(shape, card, ranks)
    fetched = ranks.offload * rounds * fetched_seconds(shape, card, GRADIENT_BYTES, ranks.shards)  # gradients
    exchange = together * exchanged_bytes(shape, work, ranks) / card.reach(ranks.sequence)
    runs = 2 + work.checkpointing  # of the layers, forward and backward
    waiting = max(0.0, runs * gather + fetched - passes * forward) + runs * exchange
    waiting += _reducing(shape, work, card, ranks) + HOST_STEP * shape.parameters / ranks.shards * ranks.offload
    steps, slow = work.optimiser_steps, slowest(ranks.trainers, card)
    models = 1 + work.critics
    return TrainingTime(
        scoring=(work.scorings + work.critics) * steps * (max(forward, gather) + exchange) * slow,
        training=models * steps * work.passes * (passes * forward + waiting) * slow,
        gathering=models * steps * work.passes * waiting * slow,
    )


def _gathering(shape: Shape, card: Card, ranks: Ranks) -> float:
    """Return the seconds in which all layers are gathered once: from main memory, if the parts are there."""
    if not ranks.gathered:
        return 0.0
    whole = ranks.gathered_bytes * shape.parameters
    others = whole * (ranks.shards - 1) / ranks.shards / card.reach(ranks.shards)
    return others + ranks.offload * fetched_seconds(shape, card, ranks.gathered_bytes, ranks.shards)


def fetched_seconds(shape: Shape, card: Card, bytes_: float, shards: int) -> float:
    """Return the seconds in which a device's part of all weights, or of their gradients, goes through its bus."""
    return bytes_ * shape.parameters / shards / card.pcie


def exchanged_bytes(shape: Shape, work: Workload, ranks: Ranks) -> float:
    """Return the bytes that each device sends in a forward pass for a token of a sequence that several share.

    Ulysses exchanges tokens for heads before attention, and back after it: queries, keys, values and results, of which
    a device holds those of its tokens, and keeps its own part. Heads of keys and values are repeated where the devices
    do not divide their number.
    """
    count = ranks.sequence
    if count == 1 or not ranks.gathered:
        return 0.0
    number = 4 if work.precise else BFLOAT16
    kv_heads = shape.kv_heads * count // math.gcd(count, shape.kv_heads)
    numbers = shape.attention * 2 * (shape.heads + kv_heads) * shape.head_dim
    return number * numbers / count * (count - 1) / count


def reward_seconds(card: Card, work: Workload, share: float, devices: int) -> float:
    """Return the seconds of reward models, in float32. `devices` divide those that can be divided.

    The first device computes the others for all.
    """
    flops = sum(reward.flops / (devices if reward.divided else 1) for reward in work.rewards)
    return work.tokens * flops * FLOAT32_PRODUCTS / (card.peak * share)


def _busiest(work: Tokens, optimiser_steps: int, streams: int) -> float:
    """Return the work of the busiest stream, as a mean over optimiser steps.

    Answers that are dealt to the least busy stream, the longest first, end within one answer of the mean. The lower
    bound is used: the larger of the longest answer and of the mean of a stream.
    """
    share = max(1, len(work) // optimiser_steps)
    parts = [work[start : start + share] for start in range(0, min(len(work), share * optimiser_steps), share)]
    return float(np.mean([max(part.max(), part.sum() / streams) for part in parts]))


def _reducing(shape: Shape, work: Workload, card: Card, ranks: Ranks) -> float:
    """Return the seconds in which gradients are summed: within the shards, and then between their copies.

    An adapter is whole on each device: its gradients are summed among all, in float32.
    """
    shards, bytes_ = (1, GRADIENT_BYTES) if work.adapter else (ranks.shards, ranks.reduced_bytes)
    copies = max(1, ranks.trainers // shards)
    within = (shards - 1) / shards / card.reach(shards) if ranks.gathered else 0.0
    between = 2 * (copies - 1) / copies / shards / card.reach(ranks.trainers)
    return bytes_ * shape.parameters * (work.adapter or 1.0) * (within + between)


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
