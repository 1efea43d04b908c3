"""Two points of a run that `outdo inspect --compare` names, and what the run has there: evaluations and checkpoints."""

from collections.abc import Iterator
from pathlib import Path

from outdo.extras.page.held_out import PairedEvaluations
from outdo.run.checkpoints.names import saved_steps
from outdo.run.evaluation import held_out_completions
from outdo.utils.text import counted

START = "start"
"""The name of the evaluation before the first step."""

Points = tuple[str, str]


def step_of(point: str) -> int | None:
    """Return the step of `start`, `20`, `step_20` or `step_000020`; None for another name."""
    number = "0" if point == START else point.removeprefix("step_")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 16 else None


def unusable(run: Path, points: Points) -> Iterator[str]:
    """Yield why two points cannot be compared: one is unknown, or they have nothing in common that can be compared."""
    evaluated, saved = held_out_completions.evaluated_steps(run), saved_steps(run / "checkpoints")[::-1]
    unknown = [point for point in points if step_of(point) not in (*evaluated, *saved)]
    known = f"evaluations: {_names(evaluated)}; checkpoints: {_names(saved)}"
    for point in unknown:
        yield f"{run}: --compare {point}: neither an evaluation nor a checkpoint; {known}"
    if not unknown and evaluations(run, points) is None and checkpoints(run, points) is None:
        yield f"{run}: --compare takes two evaluations or two checkpoints; {known}"


def evaluations(run: Path, points: Points) -> tuple[int, int] | None:
    """Return the steps of the two points if the run was evaluated after both."""
    return _both(points, held_out_completions.evaluated_steps(run))


def checkpoints(run: Path, points: Points) -> tuple[int, int] | None:
    """Return the steps of the two points if the run has a checkpoint of both."""
    return _both(points, saved_steps(run / "checkpoints"))


def sentence(paired: PairedEvaluations) -> str:
    """Describe a comparison of two evaluations."""
    right = paired.by == "right"
    better, worse = ("became right", "became wrong") if right else ("got a better reward", "got a worse one")
    test = "McNemar's exact test" if right else "exact sign test"
    changed = paired.fixed + paired.broken
    all_questions = counted(paired.questions + paired.left_out, "question")
    without = f"without a {'verdict' if right else 'reward'} from both"
    left_out = f"; left out: {paired.left_out:,} of {all_questions}, {without}" if paired.left_out else ""
    return (
        f"held-out answers {_when(paired.first)} and {_when(paired.last)}: of {counted(paired.questions, 'question')} "
        f"{paired.fixed:,} {better}, {paired.broken:,} {worse}, {paired.unchanged:,} did not change; "
        f"p = {paired.p:.2g} ({test}, n = {changed:,} that changed){left_out}"
    )


def _when(step: int) -> str:
    return f"after step {step}" if step else "before the first step"


def _both(points: Points, known: list[int]) -> tuple[int, int] | None:
    first, last = (step_of(point) for point in points)
    return (first, last) if first in known and last in known and first is not None and last is not None else None


def _names(steps: list[int]) -> str:
    return ", ".join(f"step_{step}" if step else START for step in steps) or "none"
