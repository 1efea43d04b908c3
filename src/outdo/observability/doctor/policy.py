"""Rules about the policy as a whole, its critic, its engine and its speed."""

from collections.abc import Iterator
from statistics import median

from outdo.observability.doctor.series import MIN_STEPS, Finding, RunMetrics


def entropy_collapse(run: RunMetrics) -> Iterator[Finding]:
    """Report that the entropy fell while many answers are still wrong."""
    ends = run.first_and_last("entropy")
    if ends is None:
        return
    begin = ends[0].mean
    for span in run.lasting_spans("entropy", below=begin / 5):
        if run.mean("right", span, unknown=0.0) < 0.9:
            yield span.finding(
                "warning",
                f"the entropy fell from {begin:.3g} to {span.mean:.3g} nats while answers are still wrong: the answers "
                "become alike. Raise clip_high (dapo), add an entropy bonus, or lower optim.lr.",
            )


def entropy_explosion(run: RunMetrics) -> Iterator[Finding]:
    """Report that the entropy rose far above its first values."""
    ends = run.first_and_last("entropy")
    if ends is None:
        return
    begin = ends[0].mean
    for span in run.lasting_spans("entropy", above=max(3 * begin, 0.1)):
        yield span.finding(
            "warning",
            f"the entropy rose from {begin:.3g} to {span.mean:.3g} nats: the policy breaks down. Lower optim.lr or the "
            "entropy bonus, and continue from an earlier checkpoint.",
        )


def kl_running_away(run: RunMetrics) -> Iterator[Finding]:
    """Report that the policy is far from the reference."""
    for span in run.lasting_spans("kl", above=0.5):
        yield span.finding(
            "warning",
            f"the policy is {span.mean:.2g} nats per token away from the reference. Raise beta, lower optim.lr, or "
            "update the reference (reference.sync).",
        )


def refused_updates(run: RunMetrics) -> Iterator[Finding]:
    """Report losses and gradients that are not finite."""
    for metric in ("updates/refused", "value/refused"):
        whole = run.span(metric)
        steps = [step for step, value in zip(whole.steps, whole.values, strict=True) if value > 0]
        if steps:
            yield run.span(metric, steps[0], steps[-1]).finding(
                "warning",
                f"a loss or gradient was not finite in {len(steps)} of the steps. These updates were refused and did "
                "not change the weights. The batches are in the folder refused/: look at their rewards, and lower the "
                "learning rate.",
            )


def critic_worse_than_mean(run: RunMetrics) -> Iterator[Finding]:
    """Report that the critic predicts the returns worse than their mean does."""
    for span in run.lasting_spans("value/explained_variance", below=0.0, least=2 * MIN_STEPS):
        yield span.finding(
            "warning",
            f"the critic explains {span.mean:.2f} of the variance of the returns: it is worse than their mean. Give it "
            "a warm-up or another learning rate (train.critic).",
        )


def engine_mismatch(run: RunMetrics) -> Iterator[Finding]:
    """Report that the log-probabilities of engine and trainer differ."""
    for span in run.lasting_spans("sampling/sampling_logp_difference/mean", above=0.05):
        yield span.finding(
            "warning",
            f"engine and trainer differ by {span.mean:.2g} nats per token: the answers come from a different policy. "
            "Correct for it (the correction truncate or mask of train.objective), or make both compute alike.",
        )


def slow_steps(run: RunMetrics) -> Iterator[Finding]:
    """Report steps at less than half the usual speed of the run."""
    whole = run.span("tokens_per_second")
    if not whole.values:
        return
    usual = median(whole.values)
    for span in run.lasting_spans("tokens_per_second", below=usual / 2):
        yield span.finding(
            "note",
            f"{span.mean:,.0f} tokens per second; usual in this run are {usual:,.0f}: the machine was busy, the "
            "reward was slow, or a few answers were very long.",
        )
