"""Find the best use of a cluster: which devices train, which sample, on how many an engine runs, how far it may run
ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outdo.config.recipe import Recipe
from outdo.planning import memory
from outdo.planning.hardware import Cluster
from outdo.planning.layout import Layout, Prediction, predict
from outdo.planning.shapes import Shape
from outdo.planning.simulation import ENGINES, goodput
from outdo.planning.timing import Fractions
from outdo.planning.workload import Workload
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.trainer import cost
from outdo.utils.errors import UserError

ENGINE_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
"""Shares of the devices that sample, among which the best is looked for."""

WIDER = (1, 2, 4, 8)
"""Times the fewest devices that an engine needs: wider engines answer sooner, narrower ones answer more."""

SIMULATED = 2
"""Uses of a kind that are simulated in full, after a glance at all of them."""

GLANCE = 4
"""Engines that are followed in a glance."""

TODAY = ("replicas", "sharded")
"""The kinds of layouts that outdo has, with any number of devices."""

WORTH_IT = 1.05
"""How much faster the asynchronous loop has to be before it is proposed: it costs staleness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One use of the cluster, with what it costs."""

    prediction: Prediction
    goodput: float  # share of the time that ends in steps which are kept, in spite of failures
    trainer: dict[str, int]  # bytes on a device that trains, by purpose
    engine: dict[str, int]  # bytes on a device that samples; empty where the same devices train

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is planned."""

    shape: Shape
    cluster: Cluster
    work: Workload
    recipe: Recipe
    reference: bool

    @property
    def fractions(self) -> Fractions:
        card = self.cluster.card
        return Fractions(training=card.training, decode=card.decode, update=card.update)

    @property
    def usable(self) -> float:
        return memory.USABLE * self.cluster.card.memory

    def kept(self) -> dict[str, int]:
        return memory.kept_by(
            self.shape, self.recipe, reference=self.reference, critic=self.work.critics > 0, adapter=self.work.adapter
        )


def plan(problem: Problem, *, staleness: float = 1) -> Plan:
    """Compare the uses of a cluster, up to this `staleness`. Raises `UserError` if nothing fits, and says what."""
    refused: list[str] = []
    layouts = _most_promising(problem, [*_synchronous(problem, refused)])
    if staleness > 0:
        layouts += _most_promising(problem, [*_apart(problem, staleness, refused)])
    options = [_option(problem, layout) for layout in layouts]
    if not options:
        raise UserError([*(f"--gpus: {each}" for each in dict.fromkeys(refused)), *_what_fits(problem)])
    options.sort(key=lambda option: -option.tokens_a_day / (WORTH_IT if option.prediction.layout.staleness else 1))
    return Plan(options=options, refused=list(dict.fromkeys(refused)))


def _what_fits(problem: Problem) -> Iterator[str]:
    """Yield a sentence if recomputing activations makes a run possible, which is the cheapest change."""
    if not problem.work.checkpointing:
        changed = replace(problem, work=replace(problem.work, checkpointing=True))
        if any(_synchronous(changed, [])):
            yield "with train.gradient_checkpointing=true it fits"


def settings_of(layout: Layout) -> str | None:
    """Return the settings with which outdo trains in a layout; None if it cannot yet."""
    if layout.kind in TODAY:
        return _replicas(layout.trainers, sharded=layout.kind == "sharded")
    is_one_engine, is_whole_or_shared = layout.samplers == layout.width, layout.shards in (1, layout.trainers)
    if layout.kind == "apart" and is_one_engine and is_whole_or_shared:
        replicas = _replicas(layout.trainers, sharded=layout.shards > 1) + " " if layout.trainers > 1 else ""
        width = f", tensor_parallel_size = {layout.width}" if layout.width > 1 else ""
        engine = f"""engine='{{name = "vllm", python = "..."{width}}}'"""
        return f"{replicas}{engine} train.max_staleness={layout.staleness:g}"
    return None


def _replicas(count: int, *, sharded: bool) -> str:
    return f"cluster.replicas={count}" + " cluster.shard=true" * sharded


def at_staleness(problem: Problem, layout: Layout, staleness: float) -> Prediction:
    """Return the prediction for a split of trainers and engines with another staleness."""
    return _predicted(problem, replace(layout, staleness=staleness))


def _predicted(problem: Problem, layout: Layout, followed: int = ENGINES) -> Prediction:
    return predict(problem.shape, problem.cluster, problem.work, layout, problem.fractions, followed=followed)


def _most_promising(problem: Problem, layouts: Sequence[Layout]) -> list[Layout]:
    """Return some layouts with the shortest steps at a glance, and what outdo can do today."""
    shortest = sorted(layouts, key=lambda layout: _glance(problem, layout))[:SIMULATED]
    return [layout for layout in layouts if layout.kind in TODAY or layout in shortest]


def _glance(problem: Problem, layout: Layout) -> float:
    """Return about how long a step takes. With staleness n, each of n + 1 batches under way has n + 1 steps of time."""
    ahead = 1 + layout.staleness
    several = replace(problem, work=replace(problem.work, sampled=ahead))
    found = _predicted(several, replace(layout, staleness=0.0), GLANCE)
    return max(found.step - found.sampling, found.step / ahead)


def _option(problem: Problem, layout: Layout) -> Option:
    prediction = _predicted(problem, layout)
    kept = goodput(prediction.step, layout.trainers, problem.recipe.checkpoint.every)
    trainer = memory.trainer_memory(problem.shape, problem.work, shards=layout.shards, kept=problem.kept())
    engine = _engine_memory(problem, layout, prediction)
    if layout.kind != "apart":
        trainer, engine = trainer | {f"{name} while sampling": size for name, size in engine.items()}, {}
    return Option(prediction=prediction, goodput=kept, trainer=trainer, engine=engine)


def _engine_memory(problem: Problem, layout: Layout, prediction: Prediction) -> dict[str, int]:
    """Return the bytes of an engine on a device. In place, it samples from the trainer's weights."""
    shape, work = problem.shape, problem.work
    mean = work.prompt_tokens + work.lengths.mean / 2
    cache = round(prediction.running * mean * memory.cache_bytes(shape, layout.width))
    weights = 0 if layout.kind == "replicas" else memory.engine_weights(shape, layout.width, layout.weight_bytes)
    parts = {"weights of the engine": weights, "keys and values": cache}
    return {name: size for name, size in parts.items() if size}


def _synchronous(problem: Problem, refused: list[str]) -> Iterator[Layout]:
    """Yield replicas if a device holds everything, and else trainers over several devices with engines beside them."""
    shape, cluster, work = problem.shape, problem.cluster, problem.work
    devices = cluster.devices
    beside = _states(problem, 1) - memory.engine_weights(shape, 1, cost.FLOAT32)  # its weights sample
    if _trainer_bytes(problem, 1) > problem.usable:
        refused.append(_too_much("replicas", 1, problem))
    elif not memory.fits_one_answer(shape, cluster.card, work, 1, beside, cost.FLOAT32):
        refused.append(f"replicas: beside the trainer there is no room for one answer of {work.longest:,.0f} tokens")
    else:
        yield Layout(
            kind="replicas",
            trainers=devices,
            samplers=devices,
            taken=beside,
            most_running=SEQUENCES_AT_A_TIME,
            weight_bytes=cost.FLOAT32,
        )
    if devices == 1:
        return
    yield from _sharded(problem)
    shards = _shards(problem, devices)
    if shards is None:
        refused.append(_too_much(f"{devices} trainers that share weights, gradients and optimiser", devices, problem))
        return
    taken = _states(problem, shards)
    width = _width(problem, devices, taken)
    if width is None:
        refused.append(_no_engine(problem, devices))
        return
    for each in _widths(width, devices, cluster):
        yield Layout(kind="together", trainers=devices, samplers=devices, width=each, shards=shards, taken=taken)


def _sharded(problem: Problem) -> Iterator[Layout]:
    """Yield replicas that divide their models and gather the policy to sample, if they fit. None divides an adapter."""
    devices = problem.cluster.devices
    taken = _states(problem, devices)
    samples = memory.fits_one_answer(problem.shape, problem.cluster.card, problem.work, 1, taken, cost.FLOAT32)
    if samples and not problem.work.adapter and _trainer_bytes(problem, devices) <= problem.usable:
        yield Layout(
            kind="sharded",
            trainers=devices,
            samplers=devices,
            shards=devices,
            taken=taken,
            most_running=SEQUENCES_AT_A_TIME,
            weight_bytes=cost.FLOAT32,
        )


def _apart(problem: Problem, staleness: float, refused: list[str]) -> Iterator[Layout]:
    """Yield splits of trainers and engines."""
    devices = problem.cluster.devices
    least = _width(problem, devices - 1, 0) if devices > 1 else None
    if least is None:
        refused.extend([_no_engine(problem, devices - 1)] if devices > 1 else [])
        return
    for width in _widths(least, devices - 1, problem.cluster):
        for samplers in dict.fromkeys(max(1, round(devices * share / width)) * width for share in ENGINE_SHARES):
            trainers = devices - samplers
            shards = _shards(problem, trainers) if trainers > 0 else None
            if shards is not None:
                yield Layout(
                    kind="apart", trainers=trainers, samplers=samplers, width=width, shards=shards, staleness=staleness
                )


def _widths(least: int, devices: int, cluster: Cluster) -> list[int]:
    """Return numbers of devices of an engine: the least one, and wider ones within a machine."""
    most = min(devices, cluster.card.machine)
    return [least * more for more in WIDER if more == 1 or least * more <= most]


def _states(problem: Problem, shards: int) -> int:
    """Return the bytes of weights, gradients and optimiser of a device, which stay while engines sample."""
    return round(sum(problem.kept().values()) / shards)


def _shards(problem: Problem, devices: int) -> int | None:
    """Return the fewest devices, a power of two or all of them, over which the trainer has to be cut to fit."""
    powers = [2**n for n in range(devices.bit_length()) if devices % 2**n == 0]
    for shards in dict.fromkeys([*powers, devices]):
        if _trainer_bytes(problem, shards) <= problem.usable:
            return shards
    return None


def _trainer_bytes(problem: Problem, shards: int) -> int:
    return sum(memory.trainer_memory(problem.shape, problem.work, shards=shards, kept=problem.kept()).values())


def _width(problem: Problem, devices: int, taken: int) -> int | None:
    """Return the fewest devices, a power of two, on which an engine holds the weights and the longest answer."""
    for n in range(devices.bit_length()):
        if 2**n <= devices and memory.fits_one_answer(problem.shape, problem.cluster.card, problem.work, 2**n, taken):
            return 2**n
    return None


def _too_much(what: str, shards: int, problem: Problem) -> str:
    card = problem.cluster.card
    parts = memory.trainer_memory(problem.shape, problem.work, shards=shards, kept=problem.kept())
    largest = max(parts, key=lambda name: parts[name])
    return (
        f"{what}: {sum(parts.values()) / 2**30:,.0f} GiB on each device, of which {parts[largest] / 2**30:,.0f} are "
        f"{largest}; {card.name} has {card.memory / 2**30:,.0f}, and {memory.USABLE:.0%} of it can be used. More "
        "devices, an adapter, gradient checkpointing or a smaller train.micro_batch_tokens take less"
    )


def _no_engine(problem: Problem, devices: int) -> str:
    size = memory.engine_weights(problem.shape, 1) / 2**30
    return (
        f"an engine: {size:,.0f} GiB of weights and an answer of {problem.work.longest:,.0f} tokens do not fit into "
        f"{devices} devices of {problem.cluster.card.memory / 2**30:,.0f} GiB"
    )
