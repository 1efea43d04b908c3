"""Print a plan and the validation, as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outdo.extras.plan import simulation, timing
from outdo.extras.plan.bottleneck import bottleneck
from outdo.extras.plan.layout import ParallelLayout, StepTime
from outdo.extras.plan.problem import IN_PLACE, Problem
from outdo.extras.plan.search import Option, Plan, captured, settings_of
from outdo.extras.plan.validation import Result, accepted, errors
from outdo.run.check import cost
from outdo.utils.text import counted

QUANTITIES = {"tokens": "tokens/s", "decode": "tokens/s", "memory": "GiB"}


def described(layout: ParallelLayout) -> str:
    """Return a layout in words."""
    beside = ", in main memory" * layout.offload
    beside += f", {layout.sequence} share each sequence" if layout.sequence > 1 else ""
    if layout.kind == "replicas":
        return f"{counted(layout.trainers, 'replica')}{beside}"
    if layout.kind == "sharded":
        return f"{layout.trainers:,} replicas that divide their models{beside}"
    engines = f"engines of {layout.width}" if layout.width > 1 else "engines of one"
    shards = f", weights over {layout.shards}" * (layout.shards > 1) + beside
    if layout.kind == "together" and layout.trainers == 1:
        return f"an engine that sleeps while the device trains{beside}"
    if layout.kind == "together":
        return f"all {layout.trainers} train{shards}, then sample, {engines}"
    ahead = f", staleness {layout.staleness:g}" if layout.staleness else ", synchronous"
    return f"{layout.trainers} train{shards}; {layout.samplers} sample, {engines}{ahead}"


def as_dict(plan: Plan, problem: Problem, assumed: Sequence[str], stale: Mapping[float, StepTime]) -> dict[str, Any]:
    """Return a plan for machines."""
    median, worst = accepted()
    return {
        "model": problem.shape.name,
        "devices": problem.cluster.devices,
        "card": problem.cluster.card.name,
        "options": [_option(option, problem) for option in plan.options],
        "staleness": {f"{n:g}": step.step for n, step in stale.items()},
        "impossible": list(plan.refused),
        "assumptions": [*assumed, *assumptions(plan, problem)],
        "error": {"median": median, "worst": worst},
    }


def _option(option: Option, problem: Problem) -> dict[str, Any]:
    step, layout = option.prediction, option.prediction.layout
    day, graphs = _dollars_a_day(problem), captured(problem, layout)
    return {
        "layout": described(layout),
        "kind": layout.kind,
        "trainers": layout.trainers,
        "samplers": layout.samplers,
        "devices_per_engine": layout.width,
        "shards": layout.shards,
        "devices_per_sequence": layout.sequence,
        "offload": layout.offload,
        "staleness": layout.staleness,
        "settings": settings_of(layout, problem.cluster.card),
        "seconds": {
            "step": step.step,
            "sampling": step.sampling,
            "scoring": step.scoring,
            "rewards": step.rewards,
            "training": step.training,
            "update": step.update,
            "host": step.host,
            "step_with_graphs": graphs and graphs.step,
            "trainers_idle": step.trainer_idle,
            "samplers_idle": step.engine_idle,
        },
        "goodput": option.goodput,
        "tokens_a_day": problem.work.tokens * option.tokens_a_day,
        "dollars_a_day": day,
        "dollars": day * problem.recipe.steps / option.tokens_a_day,
        "bottleneck": bottleneck(step, problem.shape, problem.cluster.card, problem.work),
        "bytes_trainer": option.trainer,
        "bytes_engine": option.engine,
        "bytes_main_memory": option.main_memory,
    }


def _dollars_a_day(problem: Problem) -> float:
    return 24 * problem.cluster.card.price * problem.cluster.devices


def show(
    plan: Plan, problem: Problem, assumed: Sequence[str], stale: Mapping[float, StepTime], console: Console
) -> None:
    """Print a plan: the best split first, then what it is compared with, memory, assumptions and the error."""
    best, card = plan.best, problem.cluster.card
    layout = best.prediction.layout
    title = f"{problem.shape.name} on {problem.cluster.devices:,} × {card.name}: {described(layout)}"
    _heading(console, title)
    _lines(console, _summary(plan, problem))
    _heading(console, "Seconds of a step (idle: trainers + engines; kept: the share that failures leave)")
    console.print(_options_table(plan.options, problem))
    if len(stale) > 1:
        _heading(console, "Staleness, for the best split of trainers and engines")
        console.print(_staleness_table(stale))
    _heading(console, "GiB on each device, about")
    console.print(_memory_table(best, problem))
    if best.main_memory:
        _lines(console, [_main_memory(best, problem)])
    for heading, lines in (
        ("Does not fit", plan.refused),
        ("Assumed", [*assumed, *assumptions(plan, problem)]),
        ("Error", [_error_line()]),
    ):
        if lines:
            _heading(console, heading)
            _lines(console, [f"- {line}" for line in lines])


def _summary(plan: Plan, problem: Problem) -> list[str]:
    best = plan.best
    step, work = best.prediction, problem.work
    card, day = problem.cluster.card, _dollars_a_day(problem)
    days = problem.recipe.steps / best.tokens_a_day
    return [
        f"a step of {work.prompts:,} × {work.group} answers takes {step.step:,.1f} s: "
        f"{work.tokens * best.tokens_a_day / 1e6:,.0f} million tokens a day",
        f"a run of {counted(problem.recipe.steps, 'step')} takes {_duration(days * 86400)} and about "
        f"${day * days:,.0f} (${card.price:g} for an hour of one device)",
        f"bottleneck: {bottleneck(step, problem.shape, card, work)}",
        *_failures(best, problem),
        _built(plan, problem),
    ]


def _failures(best: Option, problem: Problem) -> list[str]:
    """Return a sentence if failures take back much of the time."""
    lost, every = 1 - best.goodput, problem.recipe.checkpoint.every.steps
    if lost < 0.1:
        return []
    return [f"failures take back {lost:.0%} of the time; checkpoint.every={max(1, every // 4)} keeps more than {every}"]


def _built(plan: Plan, problem: Problem) -> str:
    """Return how outdo trains like this, or what it can do instead."""
    card, steps = problem.cluster.card, [option.prediction for option in plan.options]
    ready = [(step, settings) for step in steps if (settings := settings_of(step.layout, card))]
    if not ready:
        return "outdo cannot train like this yet: it has replicas, and this model does not fit them, divided or whole"
    prediction, settings = ready[0]
    if prediction is plan.best.prediction:
        return f"outdo trains like this: {settings}"
    return f"outdo cannot train like this yet; with {settings} a step takes {prediction.step:,.1f} s"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def _options_table(options: Sequence[Option], problem: Problem) -> Table:
    table = Table("devices", "step", "sample", "train", "update", "idle", "M tokens/day", "kept", box=None)
    for option in options:
        step = option.prediction
        seconds = (step.step, step.sampling, step.scoring + step.training, step.update)
        idle = (f"{part / step.step:.0%}" for part in (step.trainer_idle, step.engine_idle))
        table.add_row(
            _short(step.layout),
            *(f"{part:,.1f}" for part in seconds),
            " + ".join(idle),
            f"{problem.work.tokens * option.tokens_a_day / 1e6:,.0f}",
            f"{option.goodput:.1%}",
        )
    return table


def _short(layout: ParallelLayout) -> str:
    how = ", offloaded" * layout.offload + f", ulysses {layout.sequence}" * (layout.sequence > 1)
    if layout.kind in IN_PLACE:
        return f"{layout.trainers:,} {layout.kind}{how}"
    beside = f" + {layout.samplers:,}" if layout.kind == "apart" else " together"
    return f"{layout.trainers:,}{beside}{how}, engines of {layout.width}"


def _staleness_table(stale: Mapping[float, StepTime]) -> Table:
    table = Table("staleness", "step", "trainers idle", "engines idle", "oldest answer", box=None)
    for n, step in stale.items():
        idle = (f"{part / step.step:.0%}" for part in (step.trainer_idle, step.engine_idle))
        table.add_row(f"{n:g}", f"{step.step:,.1f} s", *idle, f"{step.oldest} updates")
    return table


def _memory_table(best: Option, problem: Problem) -> Table:
    columns = {"trainer": best.trainer, "engine": best.engine} if best.engine else {"each": best.trainer}
    table = Table("purpose", *columns, box=None)
    for name in dict.fromkeys(name for parts in columns.values() for name in parts):
        table.add_row(name, *(f"{parts[name] / 2**30:.2f}" if name in parts else "" for parts in columns.values()))
    peak = (f"{cost.peak(parts) / 2**30:.2f}" for parts in columns.values())
    table.add_row(Text(f"at the peak, of {problem.cluster.card.memory / 2**30:,.0f}", style="bold"), *peak)
    return table


def _main_memory(best: Option, problem: Problem) -> str:
    """Return what the main memory of a machine holds, in words."""
    card, devices = problem.cluster.card, best.prediction.layout.trainers
    there = min(devices, card.machine) * card.host / 2**30
    parts = ", ".join(f"{name} {size / 2**30:,.0f}" for name, size in best.main_memory.items())
    return f"main memory of a machine: {sum(best.main_memory.values()) / 2**30:,.0f} of {there:,.0f} GiB ({parts})"


def assumptions(plan: Plan, problem: Problem) -> list[str]:
    """Return what the plan takes for granted."""
    card, lengths = problem.cluster.card, problem.work.lengths
    return [
        *_of_main_memory(plan, problem),
        *_of_rewards(problem),
        *_of_builtin(plan, problem),
        f"answers: log-normal, spread {lengths.spread:g}, cut at {lengths.limit:,} tokens, which "
        f"{lengths.cut:.1%} of them reach",
        f"{card.name}: {card.peak / 1e12:,.0f} TFLOP/s in bf16, {card.bandwidth / 1e12:.3g} TB/s, "
        f"{card.memory / 2**30:,.0f} GiB, {card.link / 1e9:,.0f} GB/s to {card.machine} devices of a machine, "
        f"{card.network / 1e9:,.0f} GB/s beyond",
        f"software reaches {card.training:.0%} of the peak in training, {card.decode:.0%} of the roofline in decoding "
        f"with vLLM, {card.update:.0%} of the bandwidth in weight updates (--card training=... decode=... update=...)",
        f"rewards, batches and metrics take {timing.STEP_HOST:g} s of a step; the slowest of n machines takes "
        f"1 + {timing.SKEW:g} √(2 log n) times as long as the usual one",
        f"a failure every {simulation.DEVICE_HOURS:,.0f} hours of a training device; a restart takes "
        f"{simulation.RESTART:g} s, and checkpoints ({counted(problem.recipe.checkpoint.every.steps, 'step')} apart) "
        "cost nothing",
        "engines fail, and come back, without loss",
    ]


def _of_builtin(plan: Plan, problem: Problem) -> list[str]:
    """Return what is assumed of the built-in engine, if a layout samples by it, and what CUDA graphs may change."""
    card = problem.cluster.card
    for step in (option.prediction for option in plan.options):
        if graphs := captured(problem, step.layout):
            return [
                "the built-in engine has not been timed on a GPU: it takes what transformers takes, "
                f"{card.launch * 1e3:.3g} ms of the host for the kernels of a layer, and the device at most "
                f"{card.captured:.0%} of its roofline (--card launch=... captured=...)",
                f"with decoding steps captured as CUDA graphs, a step of {described(step.layout)} would take "
                f"{graphs.step:,.1f} instead of {step.step:,.1f} s",
            ]
    return []


def _of_main_memory(plan: Plan, problem: Problem) -> list[str]:
    """Return what is assumed of layouts whose parts are in main memory, if there is one."""
    if not any(option.main_memory for option in plan.options):
        return []
    card = problem.cluster.card
    return [
        f"main memory: {card.host / 2**30:,.0f} GiB for each device, {card.pcie / 1e9:,.0f} GB/s between them "
        f"(--card host=... pcie=...); {timing.HOST_STEP * 1e9:,.0f} s for the optimiser step of a billion weights, on "
        "the processors that one device has, from one published run of another library"
    ]


def _of_rewards(problem: Problem) -> list[str]:
    """Return what is assumed of reward models, if there are some."""
    if not problem.work.rewards:
        return []
    return [
        f"reward models compute in float32, {timing.FLOAT32_PRODUCTS} times as long as in bf16; the first replica asks "
        "one that is not divided, for all"
    ]


def _error_line() -> str:
    median, worst = accepted()
    return (
        f"{median:.0%} in the median and {worst:.0%} at worst on published runs (`outdo plan --validate`), with shares "
        "fitted for their software. Answers that are longer or shorter than assumed come on top"
    )


def show_validation(results: Sequence[Result], console: Console) -> None:
    """Print every published number beside its prediction, and the median and largest error."""
    last = None
    table = Table()
    for result in results:
        if result.software != last:
            if last is not None:
                console.print(table)
            _heading(console, f"{result.software}, {result.card}")
            _lines(console, [result.source, *([f"assumed: {result.assumed}"] if result.assumed else [])])
            table = Table("setting", "quantity", "published", "predicted", "error", box=None)
            last = result.software
        mark = "fitted" if result.fitted else "not covered" if result.outside else ""
        unit = QUANTITIES.get(result.quantity, "s")
        error = f"{result.error:+.0%} {mark}".rstrip()
        table.add_row(
            result.row, f"{result.quantity}, {unit}", f"{result.published:,.4g}", f"{result.predicted:,.4g}", error
        )
    console.print(table)
    median, worst = errors(results)
    fitted = sum(result.fitted for result in results)
    outside = [result for result in results if result.outside and not result.fitted]
    _heading(console, "Error")
    _lines(
        console,
        [
            f"{len(results)} published numbers: {fitted} fitted, {len(results) - fitted - len(outside)} predicted with "
            f"a median error of {median:.0%} and {worst:.0%} at worst",
            *(f"not covered: {reason}" for reason in dict.fromkeys(result.outside for result in outside)),
        ],
    )


def _heading(console: Console, title: str) -> None:
    console.print(Text(f"\n{title}", style="bold"))


def _lines(console: Console, lines: Sequence[str]) -> None:
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=not console.is_terminal)
