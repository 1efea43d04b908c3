"""Rules about answers that earn the reward without what the question asks for.

The reward of such a run rises, its held-out answers are right as the reward defines it, and no group lacks a signal. So
these rules compare the answers with those at the start, with the question, and by rewards that are not trained on.
"""

from collections.abc import Iterator

from outdo.extras.doctor.method import closer_to_the_start, is_distilled, of_all_sampled, reward_ends
from outdo.extras.doctor.reward_parts import reward_parts
from outdo.extras.doctor.series import Finding, RunMetrics, Span, significant_change
from outdo.utils.outcome import EVALUATIONS

HACKS = ("watched_reward_fell", "stopped_reading", "repeats_itself", "gain_without_right", "left_language")
"""The rules about what puts a reward that rose in doubt. The text of each begins with what the answers do, and `:`."""

REPEATED, REPEATED_BEFORE = 0.3, 0.15
"""The share of repeated pairs of words in a run that repeats itself, and the highest one at its start."""
FEWER_WORDS = 0.67
"""The share of the different words at the start below which the held-out answers have become poor in words."""
STRANGE = 1.0
"""Nats per token by which the answers are less likely under the starting policy than its own answers were."""
FEW_RIGHT = 0.5
"""The share of right answers below which a gain without it is worth a warning."""


def watched_reward_fell(run: RunMetrics) -> Iterator[Finding]:
    """Report that a reward that is only watched fell while one that is trained on rose."""
    parts = reward_parts(run)
    rising = ", ".join(part.name for part in parts if part.change > 0 and part.gain > 0 and not part.watched)
    for part in parts:
        if rising and part.watched and part.ends and part.change < 0:
            first, last = part.ends
            yield last.finding(
                "warning",
                f"the answers earn less of the reward {part.name}, which is only watched: its weight is 0, and it fell "
                f"from {first.mean:.3g} to {last.mean:.3g} while {rising} rose.",
                "What is trained on pays for something else: read some answers, and let the reward check this too.",
            )


def repeats_itself(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers repeat their own words, and did not at the start."""
    span = run.lasting("completions/repeated_ratio", above=REPEATED)
    if span and _start(run, "completions/repeated_ratio") < REPEATED_BEFORE:
        yield span.finding(
            "warning",
            f"the answers repeat themselves: {span.mean:.0%} of the pairs of words in an answer occurred in it before; "
            f"at the start it was {_start(run, 'completions/repeated_ratio'):.0%}.",
            "Read some answers; let the reward give nothing for repeated text, or end it earlier "
            "(sampling.max_tokens).",
        )


def fewer_words(run: RunMetrics) -> Iterator[Finding]:
    """Report that the held-out answers have far fewer different words than at the start.

    What the question asks for may be said in few words: it is a note.
    """
    for kind in EVALUATIONS:
        span = run.span(f"eval/{kind}_distinct_words")
        if len(span.values) > 1 and span.values[-1] < FEWER_WORDS * span.values[0]:
            yield Span(span.metric, span.steps[-1:], span.values[-1:]).finding(
                "note",
                f"the {kind} answers to held-out questions have fewer words that differ: {span.values[-1]:.1%} of the "
                f"first words of all answers; at the start it was {span.values[0]:.1%}.",
                "Read some answers: a reward that looks at few words is earned by few words. Let it check more, or "
                f"keep the policy closer to the start with a KL term ({closer_to_the_start(run)}).",
            )


def gain_without_right(run: RunMetrics) -> Iterator[Finding]:
    """Report that one part of the reward rose, such as that for the format, and the share of right answers did not."""
    rights, total = run.first_and_last(of_all_sampled(run, "right")), reward_ends(run)
    if not rights or not total or rights[1].mean >= FEW_RIGHT or significant_change(*rights) > 0:
        return
    first, last = total
    parts = reward_parts(run)
    rose = [part.name for part in parts if part.gain > 0 and not part.watched]
    if len(parts) > 1 and rose and significant_change(first, last) > 0:
        by = " and ".join(rose)
        yield last.finding(
            "warning",
            f"the answers earn more and are not right more often: the reward rose from {first.mean:.3g} to "
            f"{last.mean:.3g} by {by}, and {rights[1].mean:.1%} are right, {rights[0].mean:.1%} at the start.",
            "If the questions are too hard for the model, take easier ones (data.select); else pay for this part only "
            "where the answer is right.",
        )


def left_language(run: RunMetrics) -> Iterator[Finding]:
    """Report that the starting policy would hardly write the answers, by `STRANGE` nats per token."""
    span = run.span("eval/start_logprob")
    if not span.values or span.values[-1] >= span.values[0] - STRANGE or is_distilled(run):
        return
    since = next(step for step, value in zip(span.steps, span.values, strict=True) if value < span.values[0] - STRANGE)
    yield Span(span.metric, (since, *span.steps[-1:]), span.values[-1:]).finding(
        "warning",
        "the answers leave the language of the starting policy: under it a token of theirs has a log-probability of "
        f"{span.values[-1]:.1f} nats; of its own answers it had {span.values[0]:.1f}.",
        f"Read some answers; a KL term ({closer_to_the_start(run)}) keeps the policy closer to the start.",
    )


def _start(run: RunMetrics, metric: str) -> float:
    """Return the first value of a metric."""
    return run.span(metric).values[0]
