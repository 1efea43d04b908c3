"""Rules about the policy as a whole, its critic, its engine and its pace."""

from collections.abc import Iterator
from statistics import median

from outdo.observability.doctor.series import LASTING, Finding, Run


def entropy_collapse(run: Run) -> Iterator[Finding]:
    """Certain before it is right."""
    ends = run.ends("entropy")
    if ends is None:
        return
    begin = ends[0].mean
    for span in run.lasting("entropy", below=begin / 5):
        if run.mean("right", span, unknown=0.0) < 0.9:
            yield span.finding(
                "warning",
                f"the entropy has fallen from {begin:.3g} to {span.mean:.3g} nats while questions are still wrong: "
                "answers become alike. Raise clip_high (dapo), add an entropy bonus, or lower optim.lr.",
            )


def entropy_explosion(run: Run) -> Iterator[Finding]:
    """A policy that comes apart."""
    ends = run.ends("entropy")
    if ends is None:
        return
    begin = ends[0].mean
    for span in run.lasting("entropy", above=max(3 * begin, 0.1)):
        yield span.finding(
            "warning",
            f"the entropy has risen from {begin:.3g} to {span.mean:.3g} nats: the policy comes apart. Lower optim.lr "
            "or the entropy bonus, and go back to a checkpoint before.",
        )


def kl_running_away(run: Run) -> Iterator[Finding]:
    """Far from the reference."""
    for span in run.lasting("kl", above=0.5):
        yield span.finding(
            "warning",
            f"the policy is {span.mean:.2g} nats per token away from the reference. Raise beta, lower optim.lr, or "
            "renew the reference (reference.renew).",
        )


def refused_updates(run: Run) -> Iterator[Finding]:
    """Losses that are not finite."""
    for metric in ("updates/refused", "value/refused"):
        whole = run.of(metric)
        steps = [step for step, value in zip(whole.steps, whole.values, strict=True) if value > 0]
        if steps:
            yield run.of(metric, steps[0], steps[-1]).finding(
                "warning",
                f"a loss or gradient was not finite in {len(steps)} of the steps, and was refused; the weights are "
                "untouched. The batches are in the folder refused/: look at their rewards, and lower the learning "
                "rate.",
            )


def critic_misleads(run: Run) -> Iterator[Finding]:
    """Worse than the mean."""
    for span in run.lasting("value/explained_variance", below=0.0, least=2 * LASTING):
        yield span.finding(
            "warning",
            f"the critic explains {span.mean:.2f} of the variance of the returns: less than their mean would. Give "
            "it a warm-up or another learning rate (train.critic).",
        )


def engine_mismatch(run: Run) -> Iterator[Finding]:
    """Sampled from one policy, trained as another."""
    for span in run.lasting("sampling/sampling_logp_difference/mean", above=0.05):
        yield span.finding(
            "warning",
            f"engine and trainer differ by {span.mean:.2g} nats per token: the answers are another policy's. Correct "
            "for it (the correction truncate or mask of train.objective), or let both compute alike.",
        )


def slower(run: Run) -> Iterator[Finding]:
    """Half as fast as the run usually is."""
    whole = run.of("tokens_per_second")
    if not whole.values:
        return
    usual = median(whole.values)
    for span in run.lasting("tokens_per_second", below=usual / 2):
        yield span.finding(
            "note",
            f"{span.mean:,.0f} tokens per second, where {usual:,.0f} are usual in this run: the machine was busy, "
            "the reward slow, or a few answers very long.",
        )
