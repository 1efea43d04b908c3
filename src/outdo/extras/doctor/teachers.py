"""Rules about teachers: does the policy learn the task from them, or how they speak, or nothing that earns anything?

What a teacher would answer by itself is not known in a run: it has read the policy's answers alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from outdo.extras.doctor.method import is_distilled, of_all_sampled, reward_change
from outdo.extras.doctor.series import (
    FEWEST_STEPS,
    MIN_STEPS,
    Finding,
    RunMetrics,
    Span,
    significant_change,
    standard_error,
)

REPEATED, REPEATED_BEFORE = 0.2, 0.1
"""The share of the answers that repeat the hint in a run that learns to, and the highest one in its first step. Three
words of a hint, such as "the right answer", are in few answers of a policy that was told nothing."""

LITTLE = 0.1
"""Nats an answer by which a teacher has to like right answers more than wrong ones: to become like it then raises the
odds of a right answer by a tenth, from 50 to 52.5 %."""

HIDDEN = 0.2
"""Standard deviations of single answers by which the reward may rise without being seen, at most, where it is said not
to rise: for a share of right answers of a half, 10 percentage points."""

LEARNT = 0.9
"""The share of right answers from which on a reward has no room to rise."""


def teacher_no_better(run: RunMetrics) -> Iterator[Finding]:
    """Report that the teacher liked right answers no more than others in the first steps.

    Later the policy is like the teacher, and the difference goes to 0. The interval has three standard errors to each
    side, from the values of the single steps.
    """
    whole = run.span("teacher/right_minus_wrong")
    size = max(MIN_STEPS, min(10, len(whole.steps) // 5))
    if len(whole.steps) < size:
        return
    start = Span(whole.metric, whole.steps[:size], whole.values[:size])
    error = _error(start)
    low, high = start.mean - 3 * error, start.mean + 3 * error
    if high < LITTLE:
        learns = "what it is taught makes answers wrong" if high < 0 else "what it is taught makes no answer right"
        yield start.finding(
            "warning" if is_distilled(run) else "note",
            "the teacher finds right answers no more probable than wrong ones to the same question, compared with the "
            f"policy: by {start.mean:+.2f} nats an answer ({low:+.2f} to {high:+.2f}). As far as the policy's answers "
            f"show it, {learns}.",
            "Measure the teacher on the held-out questions (outdo eval); take a better one, or tell it more "
            "(teachers.hint).",
        )


def repeats_the_hint(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers have words of the hint that their question does not have, and had not at the start."""
    span = run.lasting("teacher/repeats_hint_ratio", above=REPEATED)
    start = run.span("teacher/repeats_hint_ratio").values[:1]
    if span and start[0] <= REPEATED_BEFORE:
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the answers repeat words of the hint, which only the teacher reads; at the start it "
            f"was {start[0]:.0%}: the policy learns to speak as if it had been told the answer.{_became(run)}",
            "Let the hint say less, in words that no answer has, or take only the size of a step from the teacher "
            '(train.advantage = "rlsd").',
        )


def learns_the_opening(run: RunMetrics) -> Iterator[Finding]:
    """Report that the policy begins like a teacher with a hint, and comes no closer after that, and earns no more."""
    opening, later = (run.first_and_last(f"teacher/{part}_gap") for part in ("opening", "later"))
    if not opening or not later or (reward_change(run) or 0.0) > 0:
        return
    halved = significant_change(*opening) < 0 and opening[1].mean < opening[0].mean / 2
    if halved and significant_change(*later) >= 0 and later[1].mean > 0:
        yield opening[1].finding(
            "warning",
            "the policy learns how the teacher begins, and not what it answers: on the first eight tokens their "
            f"distance fell from {opening[0].mean:.2g} to {opening[1].mean:.2g} nats a token, after them it went from "
            f"{later[0].mean:.2g} to {later[1].mean:.2g}.{_longer(run)}",
            'Let the hint say less, or take only the size of a step from the teacher (train.advantage = "rlsd").',
        )


def closer_not_better(run: RunMetrics) -> Iterator[Finding]:
    """Report that in the last third of a run the policy came closer to the teacher, and no more was earned or right.

    Each half of this third has at least three steps. It is a note where more was earned before, and silent where a rise
    of `HIDDEN` may be there and not be seen.
    """
    closer, earned = _came_closer(run), _earned(run)
    if not closer or not earned or earned.high > HIDDEN * earned.spread:
        return
    changed, low, high = map(earned.form.format, (earned.change, earned.low, earned.high))
    yield Span(closer[0].metric, closer[0].steps + closer[1].steps, closer[0].values + closer[1].values).finding(
        "note" if (reward_change(run) or 0.0) > 0 else "warning",
        f"the policy still comes closer to the teacher (from {closer[0].mean:.2g} to {closer[1].mean:.2g} nats a "
        f"token), and the {earned.what} does not rise: by {changed} ({low} to {high}).",
        "What is left to learn from this teacher earns nothing: stop here, or measure the teacher on the held-out "
        "questions (outdo eval).",
    )


def _came_closer(run: RunMetrics) -> tuple[Span, Span] | None:
    """Return the distance from the teacher in the halves of the last third; None unless it fell.

    A fall counts from a tenth of the distance at the start on: less is left over from what was learnt.
    """
    metric = "teacher/divergence" if run.span("teacher/divergence").values else "teacher/gap"
    halves, ends = _halves(run, metric), run.first_and_last(metric)
    if not halves or not ends or significant_change(*halves) >= 0:
        return None
    fell = halves[0].mean - halves[1].mean
    return halves if fell > 0.1 * ends[0].mean else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earned:
    """What changed between the halves of the last third of a run, with an interval of three standard errors."""

    what: str
    form: str
    change: float
    error: float  # three standard errors
    spread: float  # the standard deviation of single answers

    @property
    def low(self) -> float:
        return self.change - self.error

    @property
    def high(self) -> float:
        return self.change + self.error


def _earned(run: RunMetrics) -> _Earned | None:
    """Return the change of the share of right answers, or else of the mean reward; None if neither could rise."""
    shares, rewards = (_halves(run, of_all_sampled(run, metric)) for metric in ("right", "reward"))
    if shares:
        share = shares[1].mean
        changed = {"change": share - shares[0].mean, "error": 3 * standard_error(*shares)}
        spread = math.sqrt(share * (1 - share))
        what = _Earned(what="share of right answers", form="{:+.1%}", spread=spread, **changed)
        return what if share < LEARNT else None
    if not rewards:
        return None
    spread = run.mean("reward_std", rewards[1], unknown=0.0)
    changed = {"change": rewards[1].mean - rewards[0].mean, "error": 3 * standard_error(*rewards)}
    return _Earned(what="mean reward", form="{:+.3g}", spread=spread, **changed) if spread else None


def _halves(run: RunMetrics, metric: str) -> tuple[Span, Span] | None:
    """Return the halves of the last third of a metric's values; None if they are too short."""
    whole = run.span(metric)
    size = len(whole.steps) // 6
    if size < FEWEST_STEPS:
        return None
    return (
        Span(metric, whole.steps[-2 * size : -size], whole.values[-2 * size : -size]),
        Span(metric, whole.steps[-size:], whole.values[-size:]),
    )


def _error(span: Span) -> float:
    """Return the standard error of a mean, from the values of the single steps."""
    return standard_error(span, span) / math.sqrt(2)


def _became(run: RunMetrics) -> str:
    """Return what else became of the answers: their distance in the opening, and their length."""
    ends = run.first_and_last("teacher/opening_gap")
    opening = ""
    if ends and significant_change(*ends) < 0:
        opening = f" The distance on the first eight tokens went from {ends[0].mean:.2g} to {ends[1].mean:.2g} nats."
    return opening + _longer(run)


def _longer(run: RunMetrics) -> str:
    """Return a sentence about the length of the answers, if it changed."""
    lengths = run.first_and_last("completions/mean_length")
    if not lengths or not significant_change(*lengths):
        return ""
    return f" An answer has {lengths[1].mean:.0f} tokens ({lengths[0].mean:.0f} at the start)."
