"""The tables of one and of several updates on the same answers."""

from collections.abc import Sequence

from benchmarks.smollm2.plan import PASSES, PASSES_STEPS, Result
from benchmarks.smollm2.table_parts import mean_of, of, rows


def passes(runs: Sequence[Result]) -> str:
    """One, four, and as many updates on each batch as it takes: means over the first steps, and the held-out reward."""
    lines = []
    for method in ("grpo", "target"):
        once = of(runs, "instructions", method)[:1]
        for name, made in {"1": once, **{name: of(runs, "passes", f"{method}-{name}") for name in PASSES}}.items():
            lines += [f"| `{method}` | {name} | {_one_of_passes(run)} |" for run in made]
    header = "| method | updates asked | made | attained | overshoot | KL of a step | under the start | reward, rows |"
    return rows(f"{header} CPU seconds |", lines)


def _one_of_passes(run: Result) -> str:
    """Return the cells of a run; the processor seconds only where it has no more steps than the others."""
    at = next(each for each in run["evaluations"] if each["step"] == PASSES_STEPS)
    cells = [f"{mean_of(run['curve'], name, PASSES_STEPS):.2f}" for name in ("updates", "attained", "overshoot")]
    cells += [f"{mean_of(run['curve'], 'kl', PASSES_STEPS):.4f}", f"{at['start_logprob']:.2f}"]
    low, high = at["rows/greedy_reward_low"], at["rows/greedy_reward_high"]
    cells.append(f"{at['rows/greedy_reward']:.3f} ({low:.3f} to {high:.3f})")
    cells.append(f"{run['cpu_seconds']:,}" if len(run["curve"]["reward"]) == PASSES_STEPS else "")
    return " | ".join(cells)


def distance(runs: Sequence[Result]) -> str:
    """How far a step goes when ε, β, the size of the groups or the longest answer differ.

    The runs that differ in ε or β have the same answers in their first step; after it the policies differ.
    """
    lines = []
    for run in sorted((run for run in runs if run["name"].startswith("distance/")), key=_place):
        _, varied, updates = run["name"].split("/")
        curve = run["curve"]
        clipped = "" if None in curve["clipped"] else f"{mean_of(curve, 'clipped'):.0%}"
        shares = " | ".join(f"{mean_of(curve, name):.2f}" for name in ("attained", "overshoot"))
        lines.append(
            f"| {varied.replace('-', ' = ')} | {updates} | {curve['kl'][0]:.3f} | {mean_of(curve, 'kl'):.3f} "
            f"| {clipped} | {shares} | `{run['weights'][:8]}` |"
        )
    return rows("| | updates | KL of the first step | of all three | clipped | attained | overshoot | weights |", lines)


def _place(run: Result) -> tuple[str, int, float]:
    """Return what is varied, the number of updates, and the value."""
    _, varied, updates = run["name"].split("/")
    name, value = varied.split("-")
    return name, int(updates), float(value)
