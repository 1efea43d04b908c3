"""Rules about the result of training, on training questions and on held-out questions."""

import math
from collections.abc import Callable, Iterator

from outdo.extras.doctor.answers import got_worse_before
from outdo.extras.doctor.method import drops_groups, of_all_sampled, reward_ends
from outdo.extras.doctor.series import (
    Finding,
    Metrics,
    RunMetrics,
    Span,
    is_number,
    significant_change,
    standard_error,
)
from outdo.utils.outcome import EVALUATIONS, headline, left_out
from outdo.utils.text import between, counted

FALL = 0.1
"""By how much a held-out share has to fall to be reported where its confidence intervals are not known."""


def memorised(run: RunMetrics) -> Iterator[Finding]:
    """Report that training questions are answered far better than held-out ones, and were not at the start."""
    visits, several = run.span("transfer/visits"), run.lasting("transfer/visits", above=2.5)
    measured = dict(_measured(run))
    metric = measured.get("sampled", measured.get("greedy"))  # answers in training are sampled too
    if several is None or metric is None or drops_groups(run):  # the answers of all visits are not known
        return
    training = run.first_and_last(_training_metric(metric))
    tests, show = _evaluations(run, metric), _shown(metric)
    if training and _grew_apart(training, tests, metric):
        yield several.finding(
            "warning",
            f"training questions went from {show(training[0].mean)} to {show(training[1].mean)}, held-out questions "
            f"from {show(tests[0][metric])} to {_with_interval(tests[-1], metric)}, after {visits.values[-1]:.0f} "
            "visits to each question: the policy learns the questions by heart.",
            "Train on more questions, or stop earlier (outdo export --best).",
        )


def _training_metric(metric: str) -> str:
    return "reward" if metric.endswith("_reward") else "right"


def _grew_apart(training: tuple[Span, Span], tests: list[Metrics], metric: str) -> bool:
    """Return whether training answers gained twice as much as held-out ones, or kept what these lost, beyond chance."""
    rise, held_out_rise = significant_change(*training), tests[-1][metric] - tests[0][metric]
    apart = training[1].mean - training[0].mean - held_out_rise
    by_chance = math.hypot(standard_error(*training), *(_standard_error(tests[end], metric) for end in (0, -1)))
    if training[1].mean <= tests[-1].get(f"{metric}_high", math.inf) or apart <= 3 * by_chance:
        return False
    return apart > rise / 2 if rise > 0 else rise == 0 and apart > 0.1 and _training_metric(metric) == "right"


def _standard_error(line: Metrics, metric: str) -> float:
    """Return that of a held-out result, of which the 95 % interval ends 1.96 above it; 0 if that is not known."""
    return (line.get(f"{metric}_high", line[metric]) - line[metric]) / 1.96


def accuracy_fell(run: RunMetrics) -> Iterator[Finding]:
    """Report that the held-out result fell, whether the training reward rose or not.

    It does so only if the confidence intervals do not overlap, because the best of several evaluations is partly luck.
    The mean reward is reported where it fell and the share of right answers did not.
    """
    for kind, metric in _measured(run):
        numbers = (name for _, name in ((kind, metric), *_graded(run, kind, metric)))
        metric = next((name for name in numbers if _fell(*_best_and_last(run, name), name)), None)
        if metric is None:
            continue
        best, last = _best_and_last(run, metric)
        why, do = _why_it_fell(run, best, last, is_first=best is _evaluations(run, metric)[0])
        better = "; an earlier checkpoint is better (outdo export --best)" if best["step"] > 0 else ""
        yield run.span(metric, last["step"]).finding(
            "warning",
            f"the held-out {_named(metric)} of the {kind} answers fell from {_with_interval(best, metric)} (step "
            f"{best['step']}) to {_with_interval(last, metric)}{why}.",
            f"{do}{better}.",
        )


def _why_it_fell(run: RunMetrics, best: Metrics, last: Metrics, *, is_first: bool) -> tuple[str, str]:
    """Return what the training reward did meanwhile, as the end of a sentence, and what to do."""
    name = of_all_sampled(run, "reward")
    before, after = (run.span(name, line["step"] - 9, line["step"]) for line in (best, last))
    if is_first:
        before, after = run.first_and_last(name) or (before, after)
    if not before.values or not after.values:
        return ": training makes the policy worse", "Lower optim.lr"
    if after.mean > before.mean:
        rose = f"the training reward rose from {before.mean:.3g} to {after.mean:.3g}"
        return f", while {rose}: what pays in training does not help there", "Read the best groups"
    return ", and the reward did not rise: training makes the policy worse", "Lower optim.lr"


def _named(metric: str) -> str:
    return "mean reward" if metric.endswith("_reward") else "result"


def _best_and_last(run: RunMetrics, metric: str) -> tuple[Metrics, Metrics]:
    tests = _evaluations(run, metric)
    return max(tests, key=lambda line: line[metric]), tests[-1]


def _fell(best: Metrics, last: Metrics, metric: str) -> bool:
    """Return whether a result fell; without intervals only of a share, because a reward may have any scale."""
    below = _is_below(last, best, metric)
    if below is None:
        return not metric.endswith("_reward") and best[metric] - last[metric] > FALL
    return below


def answers_got_worse(run: RunMetrics) -> Iterator[Finding]:
    """Report that most groups are all wrong, and that they were not before."""
    span = run.lasting("frac_all_wrong", above=0.75)
    if span and got_worse_before(run, span.steps[0]) and not drops_groups(run):
        before = run.span("frac_all_wrong", last=span.steps[0] - 1)
        levels = run.span("data/level", last=span.steps[-1]).values
        harder = len(set(levels)) > 1 or run.setting("data.shuffle") is False
        why = "the questions have become harder, or the policy worse" if harder else "the policy has become worse"
        yield run.fault(
            span,
            f"{span.mean:.0%} of the groups are all wrong; before it was {before.mean:.0%}: {why}.",
            "See the order of the questions; unless they are harder, lower optim.lr."
            if harder
            else "Lower optim.lr, and start again from an earlier checkpoint.",
            past=f"{span.mean:.0%} of the groups were all wrong; before it was {before.mean:.0%}.",
        )


def reward_fell(run: RunMetrics) -> Iterator[Finding]:
    """Report that the mean reward of all sampled groups fell by more than the noise of single steps."""
    ends = reward_ends(run)
    if ends and significant_change(*ends) < 0:
        yield ends[1].finding(
            "warning",
            f"the mean reward fell {_from_to(ends)}.",
            "Unless the questions have become harder, lower optim.lr.",
        )


def reward_rose(run: RunMetrics) -> Iterator[Finding]:
    """Report that the mean reward rose by more than the noise of single steps."""
    ends = reward_ends(run)
    if ends and significant_change(*ends) > 0:
        yield ends[1].finding("good", f"the mean reward rose {_from_to(ends)}.")


def held_out_rose(run: RunMetrics) -> Iterator[Finding]:
    """Report that the held-out result rose; this is certain if the confidence intervals do not overlap.

    Where rewards are more than right or wrong, their mean is reported, too.
    """
    for kind, metric in [pair for measured in _measured(run) for pair in (measured, *_graded(run, *measured))]:
        first, last = _evaluations(run, metric)[0], _evaluations(run, metric)[-1]
        if last[metric] <= first[metric]:
            continue
        sure = {
            True: "",
            False: ". The 95 % intervals overlap: use more questions (eval.rows) to be certain",
            None: ". No 95 % interval is known: it may be chance",
        }[_is_below(first, last, metric)]
        what = (
            f"the mean reward of the {kind} answers to held-out questions is {_with_interval(last, metric)}"
            if metric.endswith("_reward")
            else f"{_with_interval(last, metric)} of the {kind} answers to held-out questions are right"
        )
        yield run.span(metric).finding("good", f"{what}; at the start it was {_with_interval(first, metric)}{sure}.")


def _is_below(lower: Metrics, higher: Metrics, metric: str) -> bool | None:
    """Return whether the 95 % interval of an evaluation is below that of another; None if they are not known.

    Two intervals without any width say nothing: those of the mean reward of a single question have none.
    """
    ends = [line.get(f"{metric}_{end}", math.nan) for line in (lower, higher) for end in ("low", "high")]
    if not all(map(is_number, ends)) or (math.isclose(ends[0], ends[1]) and math.isclose(ends[2], ends[3])):
        return None
    return ends[1] < ends[2]


def _measured(run: RunMetrics) -> Iterator[tuple[str, str]]:
    """Yield each kind of evaluation made at least twice, and its metric: the share right, or else the mean reward."""
    for kind in EVALUATIONS:
        metric = headline(f"eval/{kind}", {name for line in run.lines for name in line})
        if len(_evaluations(run, metric)) >= 2:
            yield kind, metric


def _graded(run: RunMetrics, kind: str, metric: str) -> list[tuple[str, str]]:
    """Return the kind and the mean reward of its answers, if that differs from the share of right answers."""
    reward = f"eval/{kind}_reward"
    made = _evaluations(run, reward)
    return [(kind, reward)] if len(made) >= 2 and any(line[reward] != line.get(metric) for line in made) else []


def _evaluations(run: RunMetrics, metric: str) -> list[Metrics]:
    return [line for line in run.lines if is_number(line.get(metric))]


def _shown(metric: str) -> Callable[[float], str]:
    """Return a function that writes a value: a share in per cent, a reward as a number."""
    return "{:.3g}".format if metric.endswith("_reward") else "{:.1%}".format


def _with_interval(line: Metrics, metric: str) -> str:
    show, low, high = _shown(metric), line.get(f"{metric}_low"), line.get(f"{metric}_high")
    interval = "" if low is None or high is None else between(low, high, show)
    around = "; ".join(filter(None, [interval, left_out(metric, line)]))
    return f"{show(line[metric])} ({around})" if around else show(line[metric])


def _from_to(ends: tuple[Span, Span]) -> str:
    first, last = ends
    steps = counted(len(first.steps), "step")
    return f"from {first.mean:.3g} (the first {steps}) to {last.mean:.3g} (the last {len(last.steps)})"
