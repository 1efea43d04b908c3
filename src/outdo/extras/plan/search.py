"""Find the best use of a cluster: which devices train, which sample, on how many an engine runs, how far it may run
ahead."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outdo.config.adapters import divided_adapter
from outdo.config.names import ULYSSES
from outdo.extras.plan import memory, timing
from outdo.extras.plan.hardware import Card, Cluster
from outdo.extras.plan.layout import ParallelLayout, StepTime, predict
from outdo.extras.plan.problem import IN_PLACE, Problem
from outdo.extras.plan.simulation import ENGINES, goodput
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.utils.errors import UserError

ENGINE_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
"""Shares of the devices that sample, among which the best is looked for."""

WIDTH_FACTORS = (1, 2, 4, 8)
"""Times the fewest devices that an engine needs: wider engines answer sooner, narrower ones answer more."""

SIMULATED = 2
"""Uses of a kind that are simulated in full, after a glance at all of them."""

ENGINES_AT_A_GLANCE = 4
"""Engines that are followed in a glance."""

KIND_IN_WORDS = {"replicas": "replicas", "sharded": "replicas that divide their models"}

CHEAPER = "More devices, an adapter, gradient checkpointing or a smaller train.micro_batch_tokens take less"

HEADS = "the replicas that share a sequence divide neither these devices nor the attention heads"

WORTH_IT = 1.05
"""How much faster the asynchronous loop has to be before it is proposed: it costs staleness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One use of the cluster, with what it costs."""

    prediction: StepTime
    goodput: float  # share of the time that ends in steps which are kept, in spite of failures
    trainer: dict[str, int]  # bytes on a device that trains, by purpose
    engine: dict[str, int]  # bytes on a device that samples; empty where the same devices train
    main_memory: dict[str, int]  # bytes of a machine's main memory that hold what its devices do not

    @property
    def tokens_a_day(self) -> float:
        return self.goodput * 86400 / self.prediction.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The uses of a cluster that were compared, the best first."""

    options: Sequence[Option]
    refused: Sequence[str]  # why others are impossible

    @property
    def best(self) -> Option:
        return self.options[0]


def plan(problem: Problem, *, staleness: float = 1) -> Plan:
    """Compare the uses of a cluster, up to this `staleness`. Raises `UserError` if nothing fits, and says what."""
    refused: list[str] = []
    layouts = _most_promising(problem, [*_synchronous(problem, refused)])
    if staleness > 0:
        layouts += _most_promising(problem, [*_apart(problem, staleness, refused)])
    options = [_option(problem, layout) for layout in layouts]
    if not options:
        raise UserError([*(f"--gpus: {reason}" for reason in dict.fromkeys(refused)), *_what_fits(problem)])
    options.sort(key=lambda option: -option.tokens_a_day / (WORTH_IT if option.prediction.layout.staleness else 1))
    return Plan(options=options, refused=list(dict.fromkeys(refused)))


def _what_fits(problem: Problem) -> Iterator[str]:
    """Yield a sentence if recomputing activations makes a run possible, which is the cheapest change."""
    if not problem.work.checkpointing:
        changed = replace(problem, work=replace(problem.work, checkpointing=True))
        if any(_synchronous(changed, [])):
            yield "with train.gradient_checkpointing=true it fits"


def settings_of(layout: ParallelLayout, card: Card) -> str | None:
    """Return the settings with which outdo trains in a layout, for a command line; None if it cannot yet."""
    if layout.kind in IN_PLACE:
        return _of_trainers(layout)
    if layout.kind == "together" and layout.trainers == 1:
        share = math.floor(100 * (memory.ENGINE_SHARE - layout.taken / card.memory)) / 100
        return f"""engine='{{name = "vllm", python = "...", sleep = true, gpu_memory_utilization = {share:g}}}'"""
    is_one_engine, is_whole_or_shared = layout.samplers == layout.width, layout.shards in (1, layout.trainers)
    if layout.kind == "apart" and is_one_engine and is_whole_or_shared:
        replicas = _of_trainers(layout) + " " if layout.trainers > 1 else ""
        width = f", tensor_parallel_size = {layout.width}" if layout.width > 1 else ""
        engine = f"""engine='{{name = "vllm", python = "..."{width}}}'"""
        return f"{replicas}{engine} train.max_staleness={layout.staleness:g}"
    return None


def _of_trainers(layout: ParallelLayout) -> str:
    """Return the settings of replicas, of what they divide and of the sequences that they share."""
    options = ["offload = true"] * layout.offload
    options += ['reduce_dtype = "bfloat16"'] * (layout.reduced_bytes < timing.GRADIENT_BYTES)
    shard = f"'{{{', '.join(options)}}}'" if options else "true"
    settings = [f"cluster.replicas={layout.trainers}", *([f"cluster.shard={shard}"] * (layout.shards > 1))]
    if layout.sequence > 1:
        groups = f"""'{{name = "{ULYSSES}", replicas = {layout.sequence}}}'"""
        settings.append(f"attention={ULYSSES if layout.sequence == layout.trainers else groups}")
    return " ".join(settings)


def at_staleness(problem: Problem, layout: ParallelLayout, staleness: float) -> StepTime:
    """Return the prediction for a split of trainers and engines with another staleness."""
    return _predicted(problem, replace(layout, staleness=staleness))


def captured(problem: Problem, layout: ParallelLayout) -> StepTime | None:
    """Return the prediction for a layout whose built-in engine captures its decoding steps; None for other engines."""
    if layout.kind not in IN_PLACE:
        return None
    cluster = replace(problem.cluster, card=replace(problem.cluster.card, launch=0.0))
    return _predicted(replace(problem, cluster=cluster), layout)


def _predicted(problem: Problem, layout: ParallelLayout, followed: int = ENGINES) -> StepTime:
    work = problem.work_of(layout)
    return predict(problem.shape, problem.cluster, work, layout, problem.fractions(layout), followed=followed)


def _most_promising(problem: Problem, layouts: Sequence[ParallelLayout]) -> list[ParallelLayout]:
    """Return some layouts with the shortest steps at a glance, and what outdo can do today."""
    shortest = sorted(layouts, key=lambda layout: _glance(problem, layout))[:SIMULATED]
    return [layout for layout in layouts if layout.kind in IN_PLACE or layout in shortest]


def _glance(problem: Problem, layout: ParallelLayout) -> float:
    """Return about how long a step takes. With staleness n, each of n + 1 batches under way has n + 1 steps of time."""
    ahead = 1 + layout.staleness
    several = replace(problem, work=replace(problem.work, sampled=ahead))
    step = _predicted(several, replace(layout, staleness=0.0), ENGINES_AT_A_GLANCE)
    return max(step.step - step.sampling, step.step / ahead)


def _option(problem: Problem, layout: ParallelLayout) -> Option:
    prediction = _predicted(problem, layout)
    productive = goodput(prediction.step, layout.trainers, problem.recipe.checkpoint.every.steps)
    trainer, main_memory = problem.trainer(layout), problem.main_memory(layout)
    engine = _engine_memory(problem, layout, prediction)
    if layout.kind != "apart":
        trainer, engine = trainer | {f"{name} while sampling": size for name, size in engine.items()}, {}
    return Option(prediction=prediction, goodput=productive, trainer=trainer, engine=engine, main_memory=main_memory)


def _engine_memory(problem: Problem, layout: ParallelLayout, prediction: StepTime) -> dict[str, int]:
    """Return the bytes of an engine on a device. In place, it samples from the trainer's weights, or their copies."""
    shape, work = problem.shape, problem.work
    mean = work.prompt_tokens + work.lengths.mean / 2
    cache = round(prediction.running * mean * memory.cache_bytes(shape, layout.width))
    weights = memory.engine_weights(shape, layout.width, layout.held_bytes)
    parts = {"weights of the engine": weights, "keys and values": cache}
    return {name: size for name, size in parts.items() if size}


def _synchronous(problem: Problem, refused: list[str]) -> Iterator[ParallelLayout]:
    """Yield replicas if a device holds everything, and trainers over the devices with engines beside them."""
    devices = problem.cluster.devices
    yield from _in_place(problem, "replicas", 1, refused)
    if devices > 1:
        yield from _in_place(problem, "sharded", devices, refused)
    layout, without_room = ParallelLayout(kind="together", trainers=devices, samplers=devices), False
    for arranged in problem.arranged(layout, _powers(devices)):
        width = _width(problem, devices, arranged.taken)
        if width is not None:
            _why(problem, arranged, "trainers with engines beside them", refused)
            yield from (replace(arranged, width=wider) for wider in _widths(width, devices, problem.cluster))
            return
        without_room = True
    if devices == 1:
        return  # what is said of a replica says it all
    if without_room:
        refused.append(_no_engine(problem, devices))
    else:
        what = f"{devices} trainers that share weights, gradients and optimiser"
        refused.append(_refusal(problem, what, problem.plain(layout, devices)))


def _in_place(problem: Problem, kind: str, shards: int, refused: list[str]) -> Iterator[ParallelLayout]:
    """Yield all devices as trainers that sample by themselves, divided by so many, if they fit."""
    devices = problem.cluster.devices
    weight_bytes, held_bytes = problem.sampled_in_place(kind)
    layout = ParallelLayout(
        kind=kind,
        trainers=devices,
        samplers=devices,
        most_running=SEQUENCES_AT_A_TIME,
        weight_bytes=weight_bytes,
        held_bytes=held_bytes,
    )
    what = KIND_IN_WORDS[kind]
    fitting = [*problem.arranged(layout, [shards])]
    for arranged in fitting:
        card, taken = problem.cluster.card, arranged.taken
        if memory.fits_one_answer(problem.shape, card, problem.work, 1, taken, layout.held_bytes):
            _why(problem, arranged, what, refused)
            yield arranged
            return
    if fitting:
        longest = f"{problem.work.longest:,.0f}"
        refused.append(f"{what}: beside the trainer there is no room for one answer of {longest} tokens")
    else:
        refused.append(_refusal(problem, what, problem.plain(layout, shards)))


def _refusal(problem: Problem, what: str, layout: ParallelLayout) -> str:
    """Return why trainers fit in no way."""
    if layout.shards > 1 and not problem.divisible:
        return f"{what}: {next(divided_adapter(memory.on_devices(problem.recipe, layout.shards)))}"
    return f"{what}: {problem.misfit(layout) or HEADS}. {CHEAPER}"


def _why(problem: Problem, arranged: ParallelLayout, what: str, refused: list[str]) -> None:
    """Say why trainers share sequences or are in main memory, where the recipe does not say so."""
    plain = problem.plain(arranged, arranged.shards)
    if (plain.sequence, plain.offload) != (arranged.sequence, arranged.offload):
        how = [f"if {arranged.sequence} share each sequence"] * (arranged.sequence > 1)
        how += ["with parts in main memory"] * arranged.offload
        why = problem.misfit(plain) or "there is no room for an answer beside the trainer"
        refused.append(f"{what}: only {' and '.join(how)}; otherwise {why}. {CHEAPER}")


def _powers(devices: int) -> list[int]:
    """Return the numbers of devices over which a trainer may be cut: powers of two that divide all of them, and all."""
    powers = [2**n for n in range(devices.bit_length()) if devices % 2**n == 0]
    return [*dict.fromkeys([*powers, devices])]


def _apart(problem: Problem, staleness: float, refused: list[str]) -> Iterator[ParallelLayout]:
    """Yield splits of trainers and engines."""
    devices = problem.cluster.devices
    least = _width(problem, devices - 1, 0) if devices > 1 else None
    if least is None:
        refused.extend([_no_engine(problem, devices - 1)] if devices > 1 else [])
        return
    arranged: dict[int, ParallelLayout | None] = {}
    for width in _widths(least, devices - 1, problem.cluster):
        for samplers in dict.fromkeys(max(1, round(devices * share / width)) * width for share in ENGINE_SHARES):
            trainers = devices - samplers
            if trainers > 0 and trainers not in arranged:
                layout = ParallelLayout(kind="apart", trainers=trainers, samplers=0, staleness=staleness)
                arranged[trainers] = next(problem.arranged(layout, _powers(trainers)), None)
            if trainers > 0 and (fitting := arranged[trainers]) is not None:
                yield replace(fitting, samplers=samplers, width=width)


def _widths(least: int, devices: int, cluster: Cluster) -> list[int]:
    """Return numbers of devices of an engine: the least one, and wider ones within a machine."""
    most = min(devices, cluster.card.machine)
    return [least * more for more in WIDTH_FACTORS if more == 1 or least * more <= most]


def _width(problem: Problem, devices: int, taken: int) -> int | None:
    """Return the fewest devices, a power of two, on which an engine holds the weights and the longest answer."""
    for n in range(devices.bit_length()):
        if 2**n <= devices and memory.fits_one_answer(problem.shape, problem.cluster.card, problem.work, 2**n, taken):
            return 2**n
    return None


def _no_engine(problem: Problem, devices: int) -> str:
    size = memory.engine_weights(problem.shape, 1) / 2**30
    return (
        f"an engine: {size:,.0f} GiB of weights and an answer of {problem.work.longest:,.0f} tokens do not fit into "
        f"{devices} devices of {problem.cluster.card.memory / 2**30:,.0f} GiB"
    )
