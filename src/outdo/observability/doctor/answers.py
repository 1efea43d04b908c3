"""Rules about questions, answers and rewards: is there something to learn?"""

from collections.abc import Iterator

from outdo.observability.doctor.series import Finding, RunMetrics, significant_change
from outdo.observability.doctor.tokens import step_size


def too_easy(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups are all right, so that there is nothing to learn."""
    for span in run.lasting_spans("frac_all_right", above=0.75):
        if run.mean("frac_reward_zero_std", span, unknown=1.0) > 0.5:
            yield span.finding(
                "warning",
                f"{span.mean:.0%} of the groups are all right: the data is too easy for the model as it is now. Take "
                "harder questions (data.select) or let train.dynamic_sampling replace them.",
            )


def too_hard(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups are all wrong, so that there is nothing to learn."""
    for span in run.lasting_spans("frac_all_wrong", above=0.75):
        if run.mean("frac_reward_zero_std", span, unknown=1.0) <= 0.5:
            continue
        before = run.span("frac_all_wrong", last=span.steps[0] - 1)
        if before.values and before.mean < 0.5:
            yield span.finding(
                "warning",
                f"{span.mean:.0%} of the groups are all wrong; before it was {before.mean:.0%}: the policy has "
                f"become worse{step_size(run, span)}. Lower optim.lr, and start again from an earlier "
                "checkpoint.",
            )
        else:
            yield span.finding(
                "warning",
                f"{span.mean:.0%} of the groups are all wrong: the data is too hard for the model as it is now. Take "
                "easier questions (data.select), sample more answers per question (train.group_size), or warm-start "
                "the model (outdo sft).",
            )


def no_signal(run: RunMetrics) -> Iterator[Finding]:
    """Report that the rewards of most groups are equal, although these groups are neither all right nor all wrong."""
    for span in run.lasting_spans("frac_reward_zero_std", above=0.8):
        one_sided = (run.mean(f"frac_all_{which}", span, unknown=0.0) for which in ("right", "wrong"))
        if max(one_sided) <= 0.75:
            yield span.finding(
                "warning",
                f"in {span.mean:.0%} of the groups all rewards are equal, so the policy learns nothing from them. "
                "Choose questions by pass rate (data.select), let train.dynamic_sampling replace such groups, or use a "
                "finer reward.",
            )


def nothing_trained(run: RunMetrics) -> Iterator[Finding]:
    """Report steps that did not train the policy."""
    for span in run.lasting_spans("updates/done", below=0.5, least=3):
        yield span.finding(
            "warning",
            "nothing was trained: no answer with a reward was left to train on. See frac_reward_zero_std, verdicts/* "
            "and train.mask_truncated.",
        )


def groups_missing(run: RunMetrics) -> Iterator[Finding]:
    """Report that dynamic sampling could not replace all dropped groups."""
    for span in run.lasting_spans("refill/missing", above=0.5):
        yield span.finding(
            "warning",
            f"after all rounds of train.dynamic_sampling, {span.mean:.1f} groups per step were still missing. Raise "
            "train.dynamic_sampling, or choose questions by pass rate (data.select), which costs no sampling.",
        )


def failed_rewards(run: RunMetrics) -> Iterator[Finding]:
    """Report answers for which the reward returned no number."""
    for kind in ("failed", "timed_out", "non_finite", "unavailable"):
        found = run.span(f"verdicts/{kind}")
        if count := sum(found.values):
            yield found.finding(
                "warning",
                f"{count:.0f} answers in {len(found.steps)} steps have no reward ({kind}) and were not trained on. "
                "`outdo check` shows what the reward returns for examples; reward_limits.timeout is its time limit.",
            )


def truncation(run: RunMetrics) -> Iterator[Finding]:
    """Report that many answers are truncated."""
    for span in run.lasting_spans("completions/clipped_ratio", above=0.2):
        limit = f" = {run.setting('sampling.max_tokens')}" if run.setting("sampling.max_tokens") else ""
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the answers are truncated. Raise sampling.max_tokens{limit}, exclude such answers "
            "from training (train.mask_truncated = true), or add the reward overlong.",
        )


def longer_not_better(run: RunMetrics) -> Iterator[Finding]:
    """Report that answers became longer and the reward did not rise."""
    lengths, rewards = run.first_and_last("completions/mean_length"), run.first_and_last("reward")
    if lengths and lengths[1].mean > 2 * lengths[0].mean and not (rewards and significant_change(*rewards) > 0):
        first, last = lengths
        yield last.finding(
            "warning",
            f"the mean length of answers grew from {first.mean:.0f} to {last.mean:.0f} tokens, and the reward did not "
            'rise. Add the reward overlong, or use an objective that does not favour long wrong answers ("dr_grpo", '
            '"dapo").',
        )
