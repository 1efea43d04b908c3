"""Rules about questions and answers: is there something to learn?

Whether a group teaches anything is what its advantages say (`frac_zero_advantage`; `without_signal` has what stands in
for it). Whether its answers are right is known only where that is defined; without it the rules about right answers are
silent. With dynamic sampling the groups of a step are chosen: rules about what changed read the means over all sampled
answers (`of_all_sampled`).
"""

from collections.abc import Iterator, Sequence

from outdo.extras.doctor.method import (
    advantage,
    drops_groups,
    has_reward,
    objective,
    of_all_sampled,
    replaced_by_dynamic_sampling,
    reward_change,
    reward_did_not_rise,
    share_without_signal,
    without_signal,
)
from outdo.extras.doctor.series import Finding, RunMetrics, Span, significant_change

SAME_FOR_ALL_LENGTHS = ("dr_grpo", "dapo")
"""Objectives in which a token of a long answer weighs as much as that of a short one."""


def truncation(run: RunMetrics) -> Iterator[Finding]:
    """Report that many answers are truncated. `turns_at_limit` reports the episodes that ended for want of a turn.

    Where some were truncated at the start and many later, it begins with the many: what came between may be the cause.
    """
    if span := run.lasting("completions/clipped_ratio", above=0.2, without="completions/turns_ratio"):
        span = span.since(2 * span.values[0]) or span
        limit = f" = {run.setting('sampling.max_tokens')}" if run.setting("sampling.max_tokens") else ""
        limit += " (of an episode) and environment.turn_tokens (of a turn)" if run.setting("environment") else ""
        advice = [f"Raise sampling.max_tokens{limit}"]
        if not run.setting("train.mask_truncated"):
            advice.append("exclude such answers from training (train.mask_truncated = true)")
        if not has_reward(run, "overlong"):
            advice.append("add the reward overlong")
        yield run.fault(
            span,
            f"{span.mean:.0%} of the answers are truncated.",
            _alternatives(advice),
            past=f"{span.mean:.0%} of the answers were truncated.",
        )


def _alternatives(advice: Sequence[str]) -> str:
    """Return a sentence that offers each of these."""
    *first, last = advice
    comma = "," if len(first) > 1 else ""
    return f"{', '.join(first)}{comma} or {last}." if first else f"{last}."


def identical_answers(run: RunMetrics) -> Iterator[Finding]:
    """Report that the answers to a question are the same text where the question is not learnt.

    Equal answers to a question that is always answered rightly are what training is for. So what counts is the share of
    groups with equal rewards that are not all right.
    """
    span = run.lasting("completions/identical_ratio", above=0.95)
    if span is None:
        return
    not_learnt = share_without_signal(run, span, unknown=1.0) - run.mean("frac_all_right", span, unknown=0.0)
    if not_learnt > 0.25:
        yield run.fault(
            span,
            f"{span.mean:.0%} of the further answers to a question repeat an earlier one word for word: a group has "
            "nothing to compare.",
            f"Sample at temperature 1 without cuts (sampling.temperature = {run.setting('sampling.temperature', '?')}, "
            f"top_p = {run.setting('sampling.top_p', '?')}, top_k = {run.setting('sampling.top_k', '?')} in this run); "
            "if it does so already, the model has hardly any choice left to learn from.",
            past=f"{span.mean:.0%} of the further answers to a question repeated an earlier one word for word.",
        )


def too_easy(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups are all right, so that there is nothing to learn (any more)."""
    span = run.lasting("frac_all_right", above=0.75)
    if span is None or share_without_signal(run, span, unknown=1.0) <= 0.5:
        return
    replaced = replaced_by_dynamic_sampling(run)
    before = run.span("frac_all_right", last=span.steps[0] - 1)
    if before.values and before.mean < 0.6:
        yield span.finding(
            "note",
            f"{span.mean:.0%} of the groups are all right, up from {before.mean:.0%}: the policy has learnt these "
            "questions.",
            f"Stop here, take harder questions (data.select){replaced}.",
        )
    else:
        yield run.fault(
            span,
            f"{span.mean:.0%} of the groups are all right.",
            f"The data is too easy for the model as it is now: take harder questions (data.select){replaced}.",
            past=f"{span.mean:.0%} of the groups were all right.",
        )


def too_hard(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups are all wrong from the start, so that there is nothing to learn.

    If no answer is ever right and all rewards of a group are equal, there is nothing to learn with any advantage.
    """
    span = run.lasting("frac_all_wrong", above=0.75)
    if span is None or run.mean("frac_reward_zero_std", span, unknown=1.0) <= 0.5:
        return
    if got_worse_before(run, span.steps[0]) or drops_groups(run):
        return
    advice = (
        "easier questions (data.select), sample more answers per question (train.group_size), or warm-start the model "
        "(outdo sft)."
    )
    if any(run.span("right").values or run.span("reward").values):
        if share_without_signal(run, span, unknown=1.0) <= 0.5:
            return
        never, advice = "", f"The data is too hard for the model as it is now: take {advice}"
    else:
        never = ", and no answer of the run was ever right"
        advice = (
            "Check that the reward accepts a right answer in the form in which the model writes it (`outdo check`). If "
            f"it does, take {advice}"
        )
    yield run.fault(
        span,
        f"{span.mean:.0%} of the groups are all wrong{never}.",
        advice,
        past=f"{span.mean:.0%} of the groups were all wrong.",
    )


def got_worse_before(run: RunMetrics, step: int) -> bool:
    """Return whether fewer than half of the groups were all wrong before a step."""
    before = run.span("frac_all_wrong", last=step - 1)
    return bool(before.values) and before.mean < 0.5


def no_signal(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups teach nothing, although these groups are neither all right nor all wrong."""
    metric = without_signal(run)
    span = run.lasting(metric, above=0.8) if metric else None
    if span is None:
        return
    one_sided = (run.mean(f"frac_all_{which}", span, unknown=0.0) for which in ("right", "wrong"))
    if max(one_sided) > 0.75:
        return
    now, then = "all rewards are equal, so that the rewards teach the policy nothing", "all rewards were equal"
    if metric == "frac_zero_advantage":
        now, then = "every advantage is 0, so that the policy learns nothing from them", "every advantage was 0"
    yield run.fault(
        span,
        f"in {span.mean:.0%} of the groups {now}.",
        f"Choose questions by pass rate (data.select), use a finer reward{replaced_by_dynamic_sampling(run)}.",
        past=f"in {span.mean:.0%} of the groups {then}.",
    )


def nothing_trained(run: RunMetrics) -> Iterator[Finding]:
    """Report steps that did not train the policy."""
    if span := run.lasting("passes/done", below=0.5, least=3):
        why, advice = _why_nothing_was_trained(run, span)
        yield span.finding("warning", f"nothing was trained: {why}.", advice)


def _why_nothing_was_trained(run: RunMetrics, span: Span) -> tuple[str, str]:
    """Return why no token was left to train on, as far as the metrics of these steps say it, and what to do."""
    if run.mean("dynamic_sampling/dropped", span, unknown=0.0) > 0 and run.mean("num_scored", span, unknown=0.0) == 0:
        return (
            "dynamic sampling found no group that teaches anything",
            "See frac_zero_advantage, dynamic_sampling/*.",
        )
    if run.mean("num_scored", span, unknown=1.0) == 0:
        return "no answer has a reward", "See reward_status/*."
    if advantage(run) == "rejection":
        return (
            "rejection trains on good answers alone, and no answer was good enough",
            "Take easier questions (data.select), or sample more answers per question (train.group_size).",
        )
    if run.setting("train.mask_truncated") and run.mean("completions/clipped_ratio", span, unknown=0.0) == 1:
        return "every answer is truncated, and train.mask_truncated leaves those out", "Raise sampling.max_tokens."
    return "no token was left to train on", "See frac_zero_advantage, reward_status/* and train.mask_truncated."


def groups_missing(run: RunMetrics) -> Iterator[Finding]:
    """Report that dynamic sampling could not replace all dropped groups; a warning if half of them are missing."""
    if span := run.lasting("dynamic_sampling/missing", above=0.5):
        yield span.finding(
            "warning" if span.mean > run.setting("train.prompts", 32) / 2 else "note",
            f"after all rounds of train.dynamic_sampling, {span.mean:.1f} groups per step were still missing.",
            "Raise train.dynamic_sampling, or choose questions by pass rate (data.select), which costs no sampling.",
        )


def shorter_answers(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers shrank to less than half of their length, and that not more of them are right.

    Where what they read of their questions is measured, `stopped_reading` tells whether they gave up.
    """
    lengths, rights = map(run.first_and_last, ("completions/mean_length", of_all_sampled(run, "right")))
    if lengths and lengths[1].mean < lengths[0].mean / 2 and not (rights and significant_change(*rights) > 0):
        first, last = lengths
        yield last.finding(
            "note" if run.span("eval/reads/mean").values else "warning",
            f"the mean length of answers fell from {first.mean:.0f} to {last.mean:.0f} tokens.",
            "Read the answers with the highest rewards: the reward may pay for brevity, or for giving up early.",
        )


def longer_not_better(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers became longer and the reward did not rise."""
    lengths = run.first_and_last("completions/mean_length")
    if lengths and lengths[1].mean > 2 * lengths[0].mean and (reward_change(run) or 0.0) <= 0:
        first, last = lengths
        advice = [] if has_reward(run, "overlong") else ["add the reward overlong"]
        if objective(run) not in SAME_FOR_ALL_LENGTHS:
            advice.append('use an objective that does not favour long wrong answers ("dr_grpo", "dapo")')
        advice.append("read the longest answers")
        yield last.finding(
            "warning",
            f"the mean length of answers grew from {first.mean:.0f} to {last.mean:.0f} tokens"
            f"{reward_did_not_rise(run)}.",
            _alternatives([advice[0][0].upper() + advice[0][1:], *advice[1:]]),
        )
