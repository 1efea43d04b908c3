"""The runs in their order. Each is a recipe of `examples/smollm2` with a learning rate, a seed and some settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

SEEDS = (0, 1, 2)
TUNING_SEED = 100  # its runs choose a learning rate, and nothing else is reported of them
TUNING_STEPS = 30
LAST = 10  # a learning rate is judged by the mean reward of so many last steps of its run
RATES = (1e-5, 2e-5, 5e-5)

TASKS = ("instructions", "fifty_tokens", "sums_in_words")
FURTHER_TASKS = ("additions", "products", "reversed_words", "calculator")
METHODS = {
    "grpo": (),
    "dapo": ("train.objective=dapo",),
    "gspo": ("train.objective=gspo",),
    "target": ("train.objective=target",),
}
"""All at equal samples: dapo has neither dynamic sampling nor the mask of truncated answers."""
FURTHER_METHODS = {
    "dr_grpo": ("train.objective=dr_grpo",),
    "rloo": ("train.objective=rloo",),
    "target_essay": ("train.objective=target_essay",),
}
LORA = ('train.adapter={name="lora", rank=16, alpha=32}',)
LORA_RATES = tuple(10 * rate for rate in RATES)
STOP = 'train.stop={name="first_of", attained=0.9}'
PASSES = {"4": ("train.passes=4",), "stop": ("train.passes=16", STOP)}
"""Further updates on the same answers: four, or until nine tenths of the way to the bounds, or targets, are made."""
PASSES_STEPS = 20  # as many as the first evaluation of the runs with one update on each batch
BROKEN = ("train.advantage=benchmarks/smollm2/broken.py:next_row",)
TEACHER = "teachers/teacher/100"  # its run's folder is the teacher of `TAUGHT`
TAUGHT_STEPS = 30
TAUGHT: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "sampled": ("train.objective=distillation", f"teachers=runs/smollm2/{TEACHER}"),
    "top_20": (
        'train.objective={name="gkd", teacher_divergence={name="reverse_kl", top=20}}',
        f"teachers=runs/smollm2/{TEACHER}",
    ),
    "whole": ("train.objective=gkd", f"teachers=runs/smollm2/{TEACHER}"),
}
"""What the start model learns `instructions` from: rewards, or a teacher's probabilities of tokens."""
SELF_TAUGHT: dict[str, tuple[str, tuple[str, ...]]] = {
    "answer": (
        "sums_in_words",
        (
            "train.objective=gkd",
            r'teachers={model="policy", hint="{prompt}\n\nThe right answer is {answer}."}',
        ),
    ),
    "right": (
        "instructions",
        (
            'train.objective={name="grpo", beta=0.0, teacher_beta=0.1}',
            r'teachers={model="policy", hint="{prompt}\n\nThis answer follows all instructions:\n{right}"}',
        ),
    ),
}
"""Runs that the policy teaches with a hint: their tasks, and their settings."""
EPSILONS, BETAS, GROUPS, LENGTHS = (0.1, 0.2, 0.4), (0.0, 0.04, 0.4), (4, 8, 16), (12, 24, 48)
DISTANCE_STEPS = 3  # what decides how far a step goes is asked of the first steps of a run

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run of the plan. Its name is that of its folder, and of its line in the results."""

    name: str
    task: str
    lr: float
    seed: int
    settings: tuple[str, ...] = ()
    library: str = "outdo"


def planned(results: Sequence[Result]) -> Iterator[Planned]:
    """Yield the runs in their order, without those whose learning rate is not chosen yet."""
    yield from tuning("grpo", METHODS["grpo"], RATES)
    yield from seeds("instructions", "grpo", results)
    if lr := best_rate("grpo", results):
        for task in TASKS[1:]:
            yield from seeds(task, "grpo", results)
        yield Planned(name="sums_in_words/again/0", task="sums_in_words", lr=lr, seed=0)  # the bits of grpo/0
        yield Planned(name="instructions/broken/0", task="instructions", lr=lr, seed=0, settings=BROKEN)
        for seed in SEEDS:
            yield Planned(name=f"instructions/trl/{seed}", task="instructions", lr=lr, seed=seed, library="trl")
        # grpo/0 on the processor of TRL's runs, with as many threads: its seconds and memory are compared with theirs
        yield Planned(name="instructions/beside_trl/0", task="instructions", lr=lr, seed=0)
    yield from tuning("lora", LORA, LORA_RATES)
    yield from seeds("instructions", "lora", results, LORA)
    for method in ("dapo", "gspo", "target"):
        yield from tuning(method, METHODS[method], RATES)
        yield from seeds("instructions", method, results, METHODS[method])
    yield from passes(results)
    if lr := best_rate("grpo", results):
        yield from distances(lr)
    yield from further(results)
    yield from taught(results)


def taught(results: Sequence[Result]) -> Iterator[Planned]:
    """Yield a teacher, then runs that are taught by it or by the policy itself, as many steps as the tuning has."""
    if (lr := best_rate("grpo", results)) is None or (lr_of_teacher := best_rate("gspo", results)) is None:
        return
    yield Planned(name=TEACHER, task="instructions", lr=lr_of_teacher, seed=TUNING_SEED, settings=METHODS["gspo"])
    short = (f"steps={TAUGHT_STEPS}", "eval.every=0")
    methods = {name: ("instructions", settings) for name, settings in TAUGHT.items()} | SELF_TAUGHT
    for seed in SEEDS:
        for method, (task, settings) in methods.items():
            yield Planned(name=f"teachers/{method}/{seed}", task=task, lr=lr, seed=seed, settings=(*settings, *short))


def further(results: Sequence[Result]) -> Iterator[Planned]:
    """Yield what is asked last: other tasks, TRL on another task, other methods."""
    for task in FURTHER_TASKS:
        yield from seeds(task, "grpo", results)
    if lr := best_rate("grpo", results):
        for seed in SEEDS:
            yield Planned(name=f"sums_in_words/trl/{seed}", task="sums_in_words", lr=lr, seed=seed, library="trl")
    for method, settings in FURTHER_METHODS.items():
        yield from tuning(method, settings, RATES)
        yield from seeds("instructions", method, results, settings)


def passes(results: Sequence[Result]) -> Iterator[Planned]:
    """Yield short runs of grpo and target with more updates on each batch than one."""
    for method in ("grpo", "target"):
        for name, settings in PASSES.items():
            if lr := best_rate(method, results):
                chosen = (*METHODS[method], *settings, f"steps={PASSES_STEPS}")
                yield Planned(name=f"passes/{method}-{name}/0", task="instructions", lr=lr, seed=0, settings=chosen)


def distances(lr: float) -> Iterator[Planned]:
    """Yield short runs of grpo from the same weights, with one update on each batch and with 16.

    They differ in ε, in β, in the size of the groups, or in the longest answer.
    """
    few = (f"steps={DISTANCE_STEPS}", "data.eval_path=", "eval.every=0", "record.after=all")
    varied = {
        "epsilon": ("train.objective.clip_low={0} train.objective.clip_high={0}", EPSILONS),
        "beta": ("train.objective.beta={0}", BETAS),
        "group": ("train.group_size={0}", GROUPS),
        "length": ("sampling.max_tokens={0}", LENGTHS),
    }
    for name, (text, values) in varied.items():
        for updates in (1, 16):
            for value in values:
                settings = (*text.format(value).split(), f"train.passes={updates}", *few)
                label = f"distance/{name}-{value}/{updates}"
                yield Planned(name=label, task="instructions", lr=lr, seed=TUNING_SEED, settings=settings)


def tuning(method: str, settings: tuple[str, ...], rates: Sequence[float]) -> Iterator[Planned]:
    """Yield the runs that choose the learning rate of a method."""
    tuned = (*settings, f"steps={TUNING_STEPS}", "data.eval_path=", "eval.every=0")
    for lr in rates:
        yield Planned(name=f"tuning/{method}/{lr:g}", task="instructions", lr=lr, seed=TUNING_SEED, settings=tuned)


def seeds(task: str, method: str, results: Sequence[Result], settings: tuple[str, ...] = ()) -> Iterator[Planned]:
    """Yield a run for each seed, at the learning rate that was chosen for the method."""
    if lr := best_rate(method, results):
        for seed in SEEDS:
            yield Planned(name=f"{task}/{method}/{seed}", task=task, lr=lr, seed=seed, settings=settings)


def best_rate(method: str, results: Sequence[Result]) -> float | None:
    """Return the learning rate with the highest mean reward in the last steps of its tuning; None before all ran."""
    tuned = [run for run in results if run["name"].startswith(f"tuning/{method}/")]
    if len(tuned) < len(RATES):
        return None
    return max(tuned, key=lambda run: (fmean(run["curve"]["reward"][-LAST:]), -run["lr"]))["lr"]
