"""Which devices train and which sample, and the seconds of a step that follow."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from outdo.extras.plan import memory, timing
from outdo.extras.plan.hardware import Card, Cluster
from outdo.extras.plan.lengths import Tokens
from outdo.extras.plan.shapes import BFLOAT16, Shape
from outdo.extras.plan.simulation import ANSWERS, ENGINES, Loop, Replay, sampling, simulate
from outdo.extras.plan.timing import Fractions, Ranks
from outdo.extras.plan.workload import Workload
from outdo.run.check import cost

MOST_RUNNING = 1024
"""Answers that an engine runs at a time at most, whatever its memory: the default of vLLM on large cards."""


KINDS = {
    "replicas": "every device holds all, and samples from the weights that it trains",
    "sharded": "all devices share the trainer's weights, and each gathers them whole to sample",
    "together": "all devices share the trainer's weights, and sample with engines beside them",
    "apart": "some devices train, and others sample",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout(Ranks):
    """A use of all devices of a cluster: how those that train are arranged, and those that sample."""

    kind: str  # one of KINDS
    samplers: int  # devices that sample
    width: int = 1  # devices of one engine (tensor parallelism)
    staleness: float = 0.0
    in_order: bool = True  # see simulation.Loop
    parts: int = 1
    taken: int = 0  # bytes of a device that trainers keep while engines sample on it
    most_running: int = MOST_RUNNING  # answers of an engine
    weight_bytes: float = BFLOAT16  # in which an engine reads a weight
    held_bytes: float = BFLOAT16  # of each weight, beside what trainers keep, while engines sample

    @property
    def engines(self) -> int:
        return max(1, self.samplers // self.width)

    def slots(self, shape: Shape, card: Card, work: Workload) -> int:
        """Return how many answers an engine runs at a time."""
        room = memory.slots(shape, card, work, self.width, self.taken, self.held_bytes)
        return max(1, min(room, self.most_running))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step, without failures."""

    layout: ParallelLayout
    step: float
    sampling: float  # of a batch, by all engines
    scoring: float  # by policy, reference, critic and reward models
    training: float
    gathering: float  # the part of training that waits for weights, gradients, tokens or main memory
    rewards: float  # the part of scoring that reward models take, their learning included
    update: float
    host: float
    trainer_idle: float
    engine_idle: float
    oldest: int  # updates by which an answer is behind, at most
    alone: float  # seconds of sampling in which at most a tenth of an engine's answers run
    running: float  # answers of an engine at its fullest


def predict(
    shape: Shape,
    cluster: Cluster,
    work: Workload,
    layout: ParallelLayout,
    fractions: Fractions,
    *,
    host: float = timing.STEP_HOST,
    followed: int = ENGINES,
) -> StepTime:
    """Return the seconds of a step, of which `host` are neither arithmetic nor transfer.

    Of so many engines every answer is `followed`, where answers are sampled in batches.
    """
    card = cluster.card
    lengths = work.lengths.sample(work.sequences)
    trained = timing.training_time(shape, card, work, layout, fractions.training, lengths)
    sampled = _sampling(shape, card, work, layout, fractions, lengths, followed)
    update = _update(shape, card, work, layout, fractions)
    sharing = layout.shards if layout.staleness == 0 else 1  # ahead of the trainer, the first device scores for all
    rewards = timing.reward_seconds(card, work, fractions.training, sharing)
    scoring = trained.scoring + rewards
    step = sampled.seconds + scoring + trained.training + update + host
    apart = layout.kind == "apart"
    synchronous = StepTime(
        layout=layout,
        step=step,
        sampling=sampled.seconds,
        scoring=scoring,
        training=trained.training,
        gathering=trained.gathering,
        rewards=rewards,
        update=update,
        host=host,
        trainer_idle=sampled.seconds + update if apart else 0.0,
        engine_idle=step - sampled.seconds * sampled.busy if apart else sampled.seconds * (1 - sampled.busy),
        oldest=0,
        alone=sampled.alone,
        running=min(layout.slots(shape, card, work), max(1.0, work.sequences * work.sampled / layout.engines)),
    )
    if apart and (layout.staleness > 0 or layout.parts > 1):
        return _overlapping(shape, card, work, fractions, synchronous)
    return synchronous


def _sampling(
    shape: Shape,
    card: Card,
    work: Workload,
    layout: ParallelLayout,
    fractions: Fractions,
    lengths: Tokens,
    followed: int,
) -> Replay:
    """Return the replay of the slowest engine, with the time that prompts take."""
    step = partial(_paced, shape, card, layout, work, fractions)
    count = max(1, round(work.sequences * work.sampled))
    answers = lengths if count == len(lengths) else np.resize(lengths, count)
    slots = layout.slots(shape, card, work)
    engine = sampling(answers, work.prompt_tokens, layout.engines, slots, step, followed=followed)
    before = timing.prefill(shape, card, work, layout.samplers) / fractions.training
    return Replay(engine.seconds + before, engine.busy, engine.alone)


def _paced(
    shape: Shape, card: Card, layout: ParallelLayout, work: Workload, fractions: Fractions, running: Any, cached: Any
) -> Any:
    """Return the seconds in which every running answer grows by a token."""
    step = timing.decode_step(
        shape,
        card,
        width=layout.width,
        running=running,
        cached=cached,
        weight_bytes=layout.weight_bytes * (1 + work.draft),
    )
    return fractions.decoding(step, shape.layers) / work.tokens_per_forward


def _update(shape: Shape, card: Card, work: Workload, layout: ParallelLayout, fractions: Fractions) -> float:
    """Return the seconds of a weight update: none where the trainer's weights sample.

    Where all devices train and sample in turns, it gathers the weights, in the bytes in which they are trained, also
    those that an adapter freezes. Engines get the adapter alone. Parts in main memory are fetched before. On one
    device the engine reads the trainer's weights from a file in main memory.
    """
    if layout.kind == "replicas":
        return 0.0
    if layout.kind == "together" and layout.trainers == 1:
        return cost.FLOAT32 * shape.parameters * (work.adapter or 1.0) / timing.FILE
    fetched = timing.fetched_seconds(shape, card, layout.gathered_bytes, layout.shards) if layout.offload else 0.0
    apart = layout.kind == "apart"
    return fetched + timing.update_seconds(
        shape,
        card,
        fractions.update,
        adapter=0.0 if layout.kind == "sharded" else work.adapter,
        devices=layout.trainers + layout.samplers if apart else layout.shards,
        weight_bytes=layout.gathered_bytes if layout.kind == "sharded" else BFLOAT16,
    )


def _overlapping(shape: Shape, card: Card, work: Workload, fractions: Fractions, synchronous: StepTime) -> StepTime:
    """Return the mean step if engines sample while trainers train, which takes `synchronous` seconds each.

    A cluster with more than ANSWERS answers a step is divided by a whole number: fewer engines, each as before.
    """
    layout = synchronous.layout
    part = max(1, work.sequences // ANSWERS)
    batch, engines = work.sequences // part, layout.engines / part
    steady = simulate(
        Loop(
            lengths=work.lengths.sample(batch * 4, seed=1),
            batch=batch,
            prompt=work.prompt_tokens,
            slots=max(1, round(layout.slots(shape, card, work) * engines)),
            engines=engines,
            step=partial(_paced, shape, card, layout, work, fractions),
            training=synchronous.scoring + synchronous.training + synchronous.host,
            update=synchronous.update,
            staleness=layout.staleness,
            in_order=layout.in_order,
            parts=layout.parts,
        )
    )
    return replace(
        synchronous,
        step=steady.seconds,
        trainer_idle=steady.trainer_idle,
        engine_idle=steady.engine_idle,
        oldest=steady.oldest,
    )
