"""Measure how the costs of a step grow: one size is varied at a time, each point in a fresh process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.suite.cases import Case, Shape
from benchmarks.suite.implementations import IMPLEMENTATIONS
from benchmarks.suite.rounds import ImplementationError, Say, run_case
from benchmarks.suite.setting import Setting

ROUNDS = 3
BASE = Case(
    name="scale",
    about="a step of which one size is varied",
    shape=Shape(hidden=128, layers=4, heads=4, kv_heads=2, mlp=384, vocabulary=512),
    prompts=4,
    prompt_tokens=32,
    answers=(32,) * 8,
)
Varied = Callable[[Case, int], Case]
SIZES: Mapping[str, tuple[Sequence[int], Varied]] = {
    "answers per group": ((4, 8, 16, 32), lambda case, n: replace(case, answers=(case.answers[0],) * n)),
    "prompts": ((2, 4, 8, 16), lambda case, n: replace(case, prompts=n)),
    "prompt tokens": ((32, 256, 1024), lambda case, n: replace(case, prompt_tokens=n)),
    "answer tokens": ((32, 128, 512), lambda case, n: replace(case, answers=(n,) * case.group)),
    "width": ((128, 256, 512), lambda case, n: replace(case, shape=_wider(case.shape, n))),
    "vocabulary": ((512, 8192, 131072), lambda case, n: replace(case, shape=replace(case.shape, vocabulary=n))),
}
GROUPS: Sequence[tuple[int, tuple[int, ...]]] = (
    (32, (64,) * 16),
    (512, (64,) * 16),
    (1024, (64,) * 8),
    (32, (512, *(32,) * 15)),
    (128, (512, *(32,) * 31)),
)
"""Groups of very different shapes: tokens of the prompt and of each answer."""

Point = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The measured points."""

    series: Mapping[str, Sequence[Point]]  # by the size that was varied
    groups: Sequence[Point]  # of one prompt each


def measure(*, threads: int, say: Say) -> Scale:
    """Measure all points, and print each."""
    series: dict[str, list[Point]] = {}
    for size, (values, varied) in SIZES.items():
        series[size] = []
        for value in values:
            point = _point(varied(BASE, value), threads=threads, say=say)
            series[size].append({size: value, **point})
            say(f"{size} {value}: {point['seconds']:.3g} s, {point['memory']:.0f} MiB, {point['recorded']:.1f} kB")
    groups: list[Point] = []
    for prompt, answers in GROUPS:
        case = replace(BASE, prompts=1, prompt_tokens=prompt, answers=answers)
        sizes = {"shared": prompt + sum(answers), "padded": len(answers) * (prompt + max(answers))}
        groups.append(sizes | _point(case, threads=threads, say=say))
        say(f"a group of {prompt} + {answers}: {groups[-1]['training']:.3g} s of training")
    return Scale(series=series, groups=groups)


def _point(case: Case, *, threads: int, say: Say) -> Point:
    """Return medians: the step and its training part [s], memory above the start [MiB], record of a step [kB]."""
    name = "outdo-record"
    setting = Setting(case=case, threads=threads)
    result = run_case(setting, [IMPLEMENTATIONS[name]], rounds=ROUNDS, say=lambda line: None, measure=False)[name]
    if result.failed:
        raise ImplementationError(f"{case}: {result.failed}")
    recorded = [turn.figures["recording"] for turn in result.turns]
    seconds = [(turn.seconds or 0.0) - each for turn, each in zip(result.turns, recorded, strict=True)]
    sampling = [turn.sampling or 0.0 for turn in result.turns]
    return {
        "seconds": median(seconds),
        "training": median(whole - part for whole, part in zip(seconds, sampling, strict=True)),
        "memory": (result.memory or 0) / 2**20,
        "recorded": median(turn.figures["recorded"] for turn in result.turns) / 1000,
    }


def _wider(shape: Shape, hidden: int) -> Shape:
    return replace(shape, hidden=hidden, mlp=3 * hidden)
