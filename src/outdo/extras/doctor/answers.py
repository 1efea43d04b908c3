"""Rules about questions and answers: is there something to learn?

Whether a group teaches anything is a matter of the spread of its rewards (`frac_reward_zero_std`), for any reward, if
the advantage compares its answers; rules about groups without spread are silent if it does not (`compares_answers`).
Whether its answers are right is known only where that is defined; without it the rules about right answers are silent.
"""

from collections.abc import Iterator

from outdo.extras.doctor.method import compares_answers
from outdo.extras.doctor.series import Finding, RunMetrics, significant_change


def truncation(run: RunMetrics) -> Iterator[Finding]:
    """Report that many answers are truncated. `turns_at_limit` reports the episodes that ended for want of a turn."""
    if span := run.lasting("completions/clipped_ratio", above=0.2, without="completions/turns_ratio"):
        limit = f" = {run.setting('sampling.max_tokens')}" if run.setting("sampling.max_tokens") else ""
        limit += " (of an episode) and environment.turn_tokens (of a turn)" if run.setting("environment") else ""
        yield run.fault(
            span,
            f"{span.mean:.0%} of the answers are truncated.",
            f"Raise sampling.max_tokens{limit}, exclude such answers from training (train.mask_truncated = true), or "
            "add the reward overlong.",
            past=f"{span.mean:.0%} of the answers were truncated.",
        )


def identical_answers(run: RunMetrics) -> Iterator[Finding]:
    """Report that the answers to a question are the same text where the question is not learnt.

    Equal answers to a question that is always answered rightly are what training is for. So what counts is the share of
    groups with equal rewards that are not all right.
    """
    span = run.lasting("completions/identical_ratio", above=0.95)
    if span is None:
        return
    not_learnt = run.mean("frac_reward_zero_std", span, unknown=1.0) - run.mean("frac_all_right", span, unknown=0.0)
    if not_learnt > 0.25 and compares_answers(run):
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
    if span is None or run.mean("frac_reward_zero_std", span, unknown=1.0) <= 0.5 or not compares_answers(run):
        return
    before = run.span("frac_all_right", last=span.steps[0] - 1)
    if before.values and before.mean < 0.6:
        yield span.finding(
            "note",
            f"{span.mean:.0%} of the groups are all right, up from {before.mean:.0%}: the policy has learnt these "
            "questions.",
            "Stop here, take harder questions (data.select), or let train.dynamic_sampling replace them.",
        )
    else:
        yield run.fault(
            span,
            f"{span.mean:.0%} of the groups are all right.",
            "The data is too easy for the model as it is now: take harder questions (data.select) or let "
            "train.dynamic_sampling replace them.",
            past=f"{span.mean:.0%} of the groups were all right.",
        )


def too_hard(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups are all wrong from the start, so that there is nothing to learn.

    If no answer is ever right, there is nothing to learn with any advantage.
    """
    span = run.lasting("frac_all_wrong", above=0.75)
    if span is None or run.mean("frac_reward_zero_std", span, unknown=1.0) <= 0.5:
        return
    if got_worse_before(run, span.steps[0]):
        return
    advice = (
        "easier questions (data.select), sample more answers per question (train.group_size), or warm-start the model "
        "(outdo sft)."
    )
    if any(run.span("right").values or run.span("reward").values):
        if not compares_answers(run):
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
    """Report that the rewards of most groups are equal, although these groups are neither all right nor all wrong."""
    span = run.lasting("frac_reward_zero_std", above=0.8)
    if span and compares_answers(run):
        one_sided = (run.mean(f"frac_all_{which}", span, unknown=0.0) for which in ("right", "wrong"))
        if max(one_sided) <= 0.75:
            yield run.fault(
                span,
                f"in {span.mean:.0%} of the groups all rewards are equal, so the policy learns nothing from them.",
                "Choose questions by pass rate (data.select), let train.dynamic_sampling replace such groups, or use a "
                "finer reward.",
                past=f"in {span.mean:.0%} of the groups all rewards were equal.",
            )


def nothing_trained(run: RunMetrics) -> Iterator[Finding]:
    """Report steps that did not train the policy."""
    if span := run.lasting("passes/done", below=0.5, least=3):
        yield span.finding(
            "warning",
            "nothing was trained: no answer with a reward was left to train on.",
            "See frac_reward_zero_std, reward_status/* and train.mask_truncated.",
        )


def groups_missing(run: RunMetrics) -> Iterator[Finding]:
    """Report that dynamic sampling could not replace all dropped groups; a warning if half of them are missing."""
    if span := run.lasting("dynamic_sampling/missing", above=0.5):
        yield span.finding(
            "warning" if span.mean > run.setting("train.prompts", 32) / 2 else "note",
            f"after all rounds of train.dynamic_sampling, {span.mean:.1f} groups per step were still missing.",
            "Raise train.dynamic_sampling, or choose questions by pass rate (data.select), which costs no sampling.",
        )


def empty_answers(run: RunMetrics) -> Iterator[Finding]:
    """Report answers without text."""
    if span := run.lasting("completions/empty_ratio", above=0.1):
        yield run.fault(
            span,
            f"{span.mean:.0%} of the answers are empty.",
            "Look at what the reward gives to an empty answer (`outdo check`); it should be the lowest one.",
            past=f"{span.mean:.0%} of the answers were empty.",
        )


def shorter_answers(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers shrank to less than half of their length, and that not more of them are right."""
    lengths, rights = run.first_and_last("completions/mean_length"), run.first_and_last("right")
    if lengths and lengths[1].mean < lengths[0].mean / 2 and not (rights and significant_change(*rights) > 0):
        first, last = lengths
        yield last.finding(
            "warning",
            f"the mean length of answers fell from {first.mean:.0f} to {last.mean:.0f} tokens.",
            "Read the answers with the highest rewards: the reward pays for brevity, or for giving up early.",
        )


def longer_not_better(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers became longer and the reward did not rise."""
    lengths, rewards = run.first_and_last("completions/mean_length"), run.first_and_last("reward")
    if lengths and lengths[1].mean > 2 * lengths[0].mean and not (rewards and significant_change(*rewards) > 0):
        first, last = lengths
        yield last.finding(
            "warning",
            f"the mean length of answers grew from {first.mean:.0f} to {last.mean:.0f} tokens, and the reward did not "
            "rise.",
            'Add the reward overlong, or use an objective that does not favour long wrong answers ("dr_grpo", "dapo").',
        )
