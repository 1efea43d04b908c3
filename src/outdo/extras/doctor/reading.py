"""A rule about what answers read of their question, which `outdo.extras.record.reading` measures."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from outdo.extras.doctor.method import closer_to_the_start, reward_change
from outdo.extras.doctor.series import FEWEST_STEPS, Finding, Level, RunMetrics, Span

READS, RATIO = "reads/", "reads_ratio/"
LEAST_READ, LEAST_READ_HELD_OUT = 5.0, 3.0
"""Nats that an answer loses without a word at the start: of what is read less, a change says nothing. A few groups of
training tell it with more noise than all held-out questions."""
STOPPED = 0.2
"""The share of this loss below which answers have stopped reading the word."""
LESS = 0.5
"""The share of this loss, of held-out answers, below which these depend less on the word."""
AGAIN = 0.8
"""The share of this loss from which answers read a word again that they had stopped reading."""
NEARLY_ALL, FEWER = 0.8, 0.6
"""The share of held-out answers that read a word at the start, at least, and now, at most. If the same share reads it
all the time, 18 answers show such a fall at most once in 40 times; where the reward asks for the word, more read it."""
SOME_FEWER = 0.1
"""By how much the share falls, at least, where fewer answers are said to read a word."""
FEWEST_QUESTIONS = 4
"""Questions of a step from which its answers tell more than that a word is not read at all any more."""
BECAME = 0.2
"""By how much a share of the answers has to rise for a finding to say what they became."""
SHORTER, LONGER = 0.67, 1.5
"""The same of their mean length, as a share of that at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """What answers lose without a word of their question, from the first to the last measurement."""

    words: str  # those around it; "mean" is all of the question
    lost: Span
    ratio: Span  # the share of the answers that read it, at the same steps; empty where it was not measured
    held_out: bool
    unread: Span  # the measurements in training or on held-out questions at which it was not read, in order

    @property
    def first(self) -> float:
        return self.lost.values[0]

    @property
    def last(self) -> float:
        return self.lost.values[-1]

    @property
    def has_stopped(self) -> bool:
        return self.last < STOPPED * self.first

    @property
    def is_part(self) -> bool:
        """Whether this is a part of questions of a template, which held-out answers are measured on."""
        return self.held_out and self.words != "mean"

    @property
    def is_halved(self) -> bool:
        """Whether held-out answers read this part of the question half as much as at the start."""
        return self.is_part and self.last < LESS * self.first and self.first >= 2 * LEAST_READ_HELD_OUT

    @property
    def fewer(self) -> float:
        """By how much the share of the answers that read it fell; NaN if it is not known."""
        shares = self.ratio.values
        return shares[0] - shares[-1] if len(shares) > 1 else math.nan

    @property
    def are_few(self) -> bool:
        """Whether few held-out answers read this part of the question, and nearly all did at the start."""
        shares = self.ratio.values
        return self.is_part and len(shares) > 1 and shares[0] >= NEARLY_ALL and shares[-1] <= FEWER

    @property
    def level(self) -> Level | None:
        """How bad it is; None if there is nothing to report.

        That all answers still read it, and lose less without it, is a note: shorter ones name it less often.
        """
        if self.has_stopped or self.are_few or (self.is_halved and not self.fewer < SOME_FEWER):
            return "warning"
        if self.unread.steps and self.last < AGAIN * self.first:
            return "warning"
        return "note" if self.unread.steps or self.is_halved else None


def stopped_reading(run: RunMetrics) -> Iterator[Finding]:
    """Report each part of the question that answers depended on at the start and no longer do, or less, or did not.

    Held-out questions decide where they are measured, because there are more of them. Those of training may tell since
    when. A policy that has broken down reads nothing either: if the reward fell, this is not a hack.
    """
    if (reward_change(run) or 0.0) < 0:
        return
    names = {name.removeprefix("eval/") for line in run.lines for name in line}
    for name in sorted(name for name in names if name.startswith(READS) and name != f"{READS}questions"):
        course = _course(run, name.removeprefix(READS))
        if course is None or (level := course.level) is None:
            continue
        last = course.lost.steps[-1]
        span = Span(course.lost.metric, (min((*course.unread.steps, last)), last), course.lost.values[-1:])
        yield span.finding(
            level,
            f"the answers {_what_they_do(course)} {_part(course)}: with the word of another question there, an answer "
            f"lost {course.first:.1f} nats at the start{_dip(course)}, and loses {course.last:.1f} now{_fewer(course)}."
            f"{_became(run)}",
            "Read some answers, and let the reward check this part of the question too; a KL term "
            f"({closer_to_the_start(run)}) keeps the policy closer to the start.",
        )


def _course(run: RunMetrics, words: str) -> _Course | None:
    """Return the course of a part of the question; None if it is not known, or little was read of it at the start."""
    held_out, training = run.span(f"eval/{READS}{words}"), run.span(f"{READS}{words}")
    by_held_out = len(held_out.values) > 1
    lost = held_out if by_held_out else training
    if len(lost.values) < 2 or lost.values[0] < (LEAST_READ_HELD_OUT if by_held_out else LEAST_READ):
        return None
    has_stopped = lost.values[-1] < STOPPED * lost.values[0]
    several = min(run.span(f"{READS}questions").values, default=0) >= FEWEST_QUESTIONS
    unread = _unread(training, LEAST_READ) if several or has_stopped else {}
    unread |= _unread(held_out, LEAST_READ_HELD_OUT)
    steps = tuple(sorted(unread))
    return _Course(
        words=words,
        lost=lost,
        ratio=run.span(f"{'eval/' if by_held_out else ''}{RATIO}{words}"),
        held_out=by_held_out,
        unread=Span(lost.metric, steps, tuple(unread[step] for step in steps)),
    )


def _unread(span: Span, least: float) -> dict[int, float]:
    """Return the steps and values at which a word is read less than `STOPPED` of what it was, if that was enough."""
    if not span.values or span.values[0] < least:
        return {}
    pairs = zip(span.steps, span.values, strict=True)
    return {step: value for step, value in pairs if value < STOPPED * span.values[0]}


def _what_they_do(course: _Course) -> str:
    if course.has_stopped:
        return "no longer read"
    only_then = course.level == "note" and not course.is_halved
    return "did not read for a while" if only_then else "depend less on"


def _part(course: _Course) -> str:
    return "their question" if course.words == "mean" else f'the word in "{course.words}"'


def _dip(course: _Course) -> str:
    """Return the lowest value, if the word was not read then and is now."""
    if course.has_stopped or not course.unread.steps:
        return ""
    lowest = min(course.unread.values)
    return f", {lowest:.1f} after step {course.unread.steps[course.unread.values.index(lowest)]:,}"


def _fewer(course: _Course) -> str:
    """Return how many answers read the word, where that fell."""
    if not course.fewer >= SOME_FEWER:
        return ""
    return f" ({course.ratio.values[-1]:.0%} of the answers lose a nat or more, {course.ratio.values[0]:.0%} did)"


def _became(run: RunMetrics) -> str:
    """Return a sentence about what became of the answers in training, as far as it differs from what they were."""
    said: list[str] = []
    for metric, text in (
        ("completions/mean_length", "an answer has {last:.0f} tokens ({first:.0f} at the start)"),
        (
            "completions/question_words_ratio",
            "{last:.0%} of the answers have at most two words that their question does not have ({first:.0%})",
        ),
        ("completions/identical_ratio", "{last:.0%} of the further answers to a question repeat one ({first:.0%})"),
        ("completions/identical_across_ratio", "{last:.0%} are answers to another question too ({first:.0%})"),
    ):
        values = run.span(metric).values
        if len(values) < 2 * FEWEST_STEPS:
            continue
        first, last = values[0], sum(values[-FEWEST_STEPS:]) / FEWEST_STEPS  # an adapter may change them in a step
        is_length = metric.endswith("length")
        differs = not SHORTER < last / max(first, 1.0) < LONGER if is_length else last - first >= BECAME
        said += [text.format(first=first, last=last)] if differs else []
    return f" Now {', '.join(said[:-1])}{' and ' * (len(said) > 1)}{said[-1]}." if said else ""
