"""Rules about the policy as a whole, its reference, its critic, its engine and its speed."""

from collections.abc import Iterator, Mapping
from statistics import median, mode

from outdo.extras.doctor.method import (
    clips_tokens,
    corrects,
    is_composed,
    is_distilled,
    objective,
    of_all_sampled,
    reward_change,
    reward_did_not_rise,
)
from outdo.extras.doctor.series import FEWEST_STEPS, MIN_STEPS, Finding, RunMetrics, Span
from outdo.utils.text import counted

FAR = 0.5
"""Distance from the reference in nats per token. A policy that is farther has usually lost what the reference knows."""

BUSY = 0.2
"""The share of a step without a processor from which other programs are named as what makes it slow."""


def entropy_collapse(run: RunMetrics) -> Iterator[Finding]:
    """Report that the entropy fell while many answers are still wrong; without a verdict, while no reward rose."""
    ends = run.first_and_last("entropy")
    span = run.lasting("entropy", below=ends[0].mean / 5) if ends else None
    if ends and span and not _is_learnt(run, span):
        wrong = " while answers are still wrong" if run.span(of_all_sampled(run, "right")).values else ""
        yield span.finding(
            "warning",
            f"the entropy fell from {ends[0].mean:.3g} to {span.mean:.3g} nats{wrong}: the answers become alike.",
            _keep_entropy(run),
        )


def _keep_entropy(run: RunMetrics) -> str:
    """Return advice against a falling entropy that the objective can follow."""
    bonus = "add an entropy bonus" if is_composed(run) else "lower optim.lr"
    if objective(run) is not None and not clips_tokens(run):
        return f"{bonus.capitalize()}, or sample at temperature 1 without cuts."
    return f"Raise clip_high (dapo), or {bonus}."


def _is_learnt(run: RunMetrics, span: Span) -> bool:
    """Return whether nearly all answers of these steps are right; where that is not known, if the reward rose."""
    right = of_all_sampled(run, "right")
    if run.span(right).values:
        return run.mean(right, span, unknown=0.0) >= 0.9
    return (reward_change(run) or 0.0) > 0


def entropy_explosion(run: RunMetrics) -> Iterator[Finding]:
    """Report that the entropy rose far above its first values, and above the target of an adaptive bonus."""
    ends = run.first_and_last("entropy")
    bonus = run.setting("train.objective.entropy_bonus", 0.0)
    target = float(bonus.get("target", 0.0)) if isinstance(bonus, Mapping) else 0.0
    span = run.lasting("entropy", above=max(3 * ends[0].values[0], 0.1, 2 * target)) if ends else None
    if ends and span:
        size = f"adaptive entropy bonus (target {target:g} nats)" if target else f"entropy bonus of {bonus}"
        yield span.finding(
            "warning",
            f"the entropy rose from {ends[0].values[0]:.3g} to {span.mean:.3g} nats: the policy breaks down"
            + (f"; the objective has an {size}." if bonus else "."),
            f"{'Lower the entropy bonus' if bonus else 'Lower optim.lr'}, and continue from an earlier checkpoint.",
        )


def reward_outweighed(run: RunMetrics) -> Iterator[Finding]:
    """Report that much of the push comes from the reference, and that the reward did not rise."""
    span = run.lasting("regularisation", above=0.25)
    if span and (reward_change(run) or 0.0) <= 0:
        yield span.finding(
            "warning",
            f"{span.mean:.0%} of the push on tokens comes from the KL from the reference{reward_did_not_rise(run)}.",
            "Lower beta, or update the reference (reference.sync).",
        )


def kl_explosion(run: RunMetrics) -> Iterator[Finding]:
    """Report that the policy is far from the reference, or will soon be: its distance grows many times over.

    A reference that is another model, such as a teacher, is far from the first step on: then only growth counts. Where
    the reward rose, the distance is what the policy has learnt, which is worth a note.
    """
    kl = run.span("kl")
    began_far = bool(kl.values) and kl.values[0] > FAR and (is_distilled(run) or run.setting("reference.model"))
    far = None if began_far else run.lasting("kl", above=FAR, least=FEWEST_STEPS)
    growing = _growing(kl)
    if span := far or growing:
        has_learnt = not growing and (reward_change(run) or 0.0) > 0
        first, last = _levels(span)[0], max(_levels(span))
        yield span.finding(
            "note" if has_learnt else "warning",
            f"the policy is {span.mean:.2g} nats per token away from the reference."
            if far
            else f"the distance from the reference grew from {first:.2g} to {last:.2g} nats per token.",
            _nearer_to_reference(run),
        )


def _nearer_to_reference(run: RunMetrics) -> str:
    """Return advice that keeps the policy near the reference."""
    if is_distilled(run):
        return "Lower optim.lr."
    coefficient = "train.kl_in_reward.beta" if run.setting("train.kl_in_reward") else "beta"
    return f"Raise {coefficient}, lower optim.lr, or update the reference (reference.sync)."


def _growing(kl: Span) -> Span | None:
    """Return the steps since the distance grew tenfold in five of them, and a fifth of the way to `FAR`."""
    levels = _levels(kl)
    for start in range(MIN_STEPS, len(levels) - MIN_STEPS):
        first, last = levels[start], levels[start + MIN_STEPS]
        if last > max(10 * first, FAR / 5) and first > 0:
            return Span(kl.metric, kl.steps[start:], kl.values[start:])
    return None


def _levels(span: Span) -> list[float]:
    """Return the medians of `FEWEST_STEPS` steps each, which a single step that is far does not move."""
    ends = range(FEWEST_STEPS, len(span.values) + 1)
    return [median(span.values[end - FEWEST_STEPS : end]) for end in ends]


def refused_updates(run: RunMetrics) -> Iterator[Finding]:
    """Report losses and gradients that are not finite."""
    for metric in ("updates/refused", "value/refused"):
        whole = run.span(metric)
        steps = [step for step, value in zip(whole.steps, whole.values, strict=True) if value > 0]
        if steps:
            yield run.span(metric, steps[0], steps[-1]).finding(
                "warning",
                f"a loss or gradient was not finite in {len(steps):,} of the steps. These updates were refused and did "
                "not change the weights.",
                "The batches are in the folder refused/: look at their rewards, and at the learning rate.",
            )


def critic_worse_than_mean(run: RunMetrics) -> Iterator[Finding]:
    """Report that the critic predicts the returns worse than their mean does."""
    if span := run.lasting("value/explained_variance", below=0.0, least=2 * MIN_STEPS):
        yield run.fault(
            span,
            f"the critic explains {span.mean:.2f} of the variance of the returns: it is worse than their mean.",
            "Give it a warm-up or another learning rate (train.critic).",
            past=f"the critic explained {span.mean:.2f} of the variance of the returns: it was worse than their mean.",
        )


def engine_mismatch(run: RunMetrics) -> Iterator[Finding]:
    """Report that the log-probabilities of engine and trainer differ, where both should have the same weights."""
    if run.span("staleness/max").values or run.setting("train.max_staleness"):
        return
    if span := run.lasting("sampling/sampling_logp_difference/mean", above=0.05):
        corrected = corrects(run)
        yield span.finding(
            "warning",
            f"engine and trainer differ by {span.mean:.2g} nats per token: the answers come from a different policy.",
            "The objective takes it into account, and learns less from such tokens: make both compute alike."
            if corrected
            else "Correct for it (the correction truncate or mask of train.objective), or make both compute alike.",
        )
    elif span := run.lasting("sampling/effective_sample_size", below=0.9):
        yield span.finding(
            "warning",
            f"a few tokens differ so much between engine and trainer that the sample counts as {span.mean:.0%} of it.",
            "The correction mask of train.objective excludes them; in the same precision both compute alike.",
        )


def stale_answers(run: RunMetrics) -> Iterator[Finding]:
    """Report that the policy has moved too far from the older weights that sample its answers."""
    steps = run.span("staleness/max").values
    if steps and (span := run.lasting("sampling/effective_sample_size", below=0.9)):
        yield span.finding(
            "warning",
            f"answers of weights up to {counted(max(steps), 'step')} behind count as {span.mean:.0%} of a sample of "
            "the policy.",
            "Lower train.max_staleness, or optim.lr.",
        )


def slow_replica(run: RunMetrics) -> Iterator[Finding]:
    """Report that all replicas wait for one of them."""
    span = run.lasting("replicas/slowest_ratio", above=2.0)
    slowest = run.span("replicas/slowest", span.steps[0], span.steps[-1]).values if span else ()
    if span and slowest and slowest.count(rank := mode(slowest)) >= 0.8 * len(slowest):
        yield span.finding(
            "warning",
            f"replica {rank:g} takes {span.mean:.1f} times as long as the others, which wait for it.",
            "Its GPU or machine is slower, or busy with other work: compare them with `outdo cluster check`.",
        )


def slow_steps(run: RunMetrics) -> Iterator[Finding]:
    """Report steps at less than half the usual speed of the run."""
    speed = run.span("tokens_per_second")
    usual = median(speed.values) if speed.values else 0.0
    if span := run.lasting("tokens_per_second", below=usual / 2):
        seconds = run.mean("seconds", span, unknown=0.0)
        waited = run.mean("seconds_without_processor", span, unknown=0.0)
        busy = f", and for {waited / seconds:.0%} of the time they had no processor" if waited > BUSY * seconds else ""
        yield span.finding(
            "note",
            f"{span.mean:,.0f} tokens per second; usual in this run are {usual:,.0f}{busy}.",
            "Other programs compute on this machine, or the run has more threads than it has processors."
            if busy
            else "The machine was busy, the reward was slow, or a few answers were very long: see time/*.",
        )
