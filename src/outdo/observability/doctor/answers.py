"""Rules about questions, answers and rewards: was there something to learn?"""

from collections.abc import Iterator

from outdo.observability.doctor.series import Finding, Run, change
from outdo.observability.doctor.tokens import step_size


def too_easy(run: Run) -> Iterator[Finding]:
    """Nothing to learn, for all is known."""
    for span in run.lasting("frac_all_right", above=0.75):
        if run.mean("frac_reward_zero_std", span, unknown=1.0) > 0.5:
            yield span.finding(
                "warning",
                f"{span.mean:.0%} of the groups are all right: the data is too easy for the model as it is now. Take "
                "harder questions (data.select) or let train.refill replace them.",
            )


def too_hard(run: Run) -> Iterator[Finding]:
    """Nothing to learn, for nothing is right."""
    for span in run.lasting("frac_all_wrong", above=0.75):
        if run.mean("frac_reward_zero_std", span, unknown=1.0) <= 0.5:
            continue
        before = run.of("frac_all_wrong", last=span.steps[0] - 1)
        if before.values and before.mean < 0.5:
            yield span.finding(
                "warning",
                f"{span.mean:.0%} of the groups are all wrong, where {before.mean:.0%} were before: the policy has "
                f"lost what it could do{step_size(run, span)}. Lower optim.lr, and start again from an earlier "
                "checkpoint.",
            )
        else:
            yield span.finding(
                "warning",
                f"{span.mean:.0%} of the groups are all wrong: the data is too hard for the model as it is now. Take "
                "easier questions (data.select), more answers to each (train.group), or warm-start it (outdo sft).",
            )


def no_signal(run: Run) -> Iterator[Finding]:
    """Equal rewards, and neither right nor wrong says why."""
    for span in run.lasting("frac_reward_zero_std", above=0.8):
        one_sided = (run.mean(f"frac_all_{which}", span, unknown=0.0) for which in ("right", "wrong"))
        if max(one_sided) <= 0.75:
            yield span.finding(
                "warning",
                f"in {span.mean:.0%} of the groups all rewards are equal, and nothing is learnt from them. Choose "
                "questions by pass rate (data.select), let train.refill replace them, or use a finer reward.",
            )


def nothing_trained(run: Run) -> Iterator[Finding]:
    """Steps without an update."""
    for span in run.lasting("updates/done", below=0.5, least=3):
        yield span.finding(
            "warning",
            "no update was made: no answer with a reward was left to train on. See frac_reward_zero_std, verdicts/* "
            "and train.truncated.",
        )


def refill_starved(run: Run) -> Iterator[Finding]:
    """More was thrown away than could be replaced."""
    for span in run.lasting("refill/missing", above=0.5):
        yield span.finding(
            "warning",
            f"after all rounds of train.refill, {span.mean:.1f} groups a step were still missing. Raise it, or "
            "choose questions by pass rate (data.select), which costs no sampling.",
        )


def failed_rewards(run: Run) -> Iterator[Finding]:
    """Answers that the reward gave no number."""
    for kind in ("failed", "timed_out", "non_finite"):
        found = run.of(f"verdicts/{kind}")
        if count := sum(found.values):
            yield found.finding(
                "warning",
                f"{count:.0f} answers in {len(found.steps)} steps have no reward ({kind}), and were left out. "
                "`outdo check` shows what the reward says of examples; reward.timeout is how long it may take.",
            )


def truncation(run: Run) -> Iterator[Finding]:
    """Answers that have no room."""
    for span in run.lasting("completions/clipped_ratio", above=0.2):
        limit = f" = {run.setting('sampling.max_tokens')}" if run.setting("sampling.max_tokens") else ""
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the answers are cut off before they end. Raise sampling.max_tokens{limit}, leave "
            'such answers out (train.truncated = "mask"), or add the reward overlong.',
        )


def longer_not_better(run: Run) -> Iterator[Finding]:
    """Length is welcome where it earns something."""
    lengths, rewards = run.ends("completions/mean_length"), run.ends("reward")
    if lengths and lengths[1].mean > 2 * lengths[0].mean and not (rewards and change(*rewards) > 0):
        first, last = lengths
        yield last.finding(
            "warning",
            f"answers have grown from {first.mean:.0f} to {last.mean:.0f} tokens, and the reward has not. Add the "
            'reward overlong, or an objective that does not favour long wrong answers ("dr_grpo", "dapo").',
        )
