"""Rules about the result of training, on training questions and on held-out questions."""

import math
from collections.abc import Iterator

from outdo.observability.doctor.series import Finding, Metrics, RunMetrics, Span, is_number, significant_change

EVALUATIONS = (("eval/greedy", "greedy"), ("eval/sampled", "sampled"))
"""Each evaluation metric, and the word for its answers."""


def reward_rose(run: RunMetrics) -> Iterator[Finding]:
    """Report that the mean reward rose by more than the noise of single steps."""
    ends = run.first_and_last("reward")
    if ends and significant_change(*ends) > 0:
        first, last = ends
        yield Span("reward", (*first.steps, *last.steps), (*first.values, *last.values)).finding(
            "good",
            f"the mean reward rose from {first.mean:.3g} (the first {len(first.steps)} steps) to {last.mean:.3g} (the "
            f"last {len(last.steps)}).",
        )


def held_out_accuracy_rose(run: RunMetrics) -> Iterator[Finding]:
    """Report that held-out accuracy rose; this is certain if the confidence intervals do not overlap."""
    for name, words in EVALUATIONS:
        tests = [line for line in run.lines if is_number(line.get(name))]
        if len(tests) < 2 or tests[-1][name] <= tests[0][name]:
            continue
        first, last = tests[0], tests[-1]
        apart = first.get(f"{name}_high", math.inf) < last.get(f"{name}_low", -math.inf)
        sure = "" if apart else ". The 95 % intervals overlap: use more questions (eval.rows) to be certain"
        yield run.span(name).finding(
            "good",
            f"{_with_interval(last, name)} of the {words} answers to held-out questions are right; at the start it was "
            f"{_with_interval(first, name)}{sure}.",
        )


def no_transfer(run: RunMetrics) -> Iterator[Finding]:
    """Report that the answers to questions that appear again are not better than at the previous visit."""
    share, count = run.span("transfer/followed"), run.span("transfer/prompts")
    visits = sum(count.values)
    if share.steps != count.steps or visits < 50:
        return
    followed = math.fsum(a * n for a, n in zip(share.values, count.values, strict=True)) / visits
    if followed < 0.4:
        yield share.finding(
            "warning",
            f"only {followed:.0%} of {visits:.0f} questions that appeared again had a higher mean reward than at their "
            "previous visit: training does not improve new answers. See moved_right_way and the learning rate.",
        )


def accuracy_fell(run: RunMetrics) -> Iterator[Finding]:
    """Report that held-out accuracy fell, whether the reward rose or not.

    It does so only if the confidence intervals do not overlap, because the best of several evaluations is partly luck.
    """
    for name, words in EVALUATIONS:
        tests = [line for line in run.lines if is_number(line.get(name))]
        if len(tests) < 2:
            continue
        best, last = max(tests, key=lambda line: line[name]), tests[-1]
        if last.get(f"{name}_high", last[name] + 0.05) >= best.get(f"{name}_low", best[name] - 0.05):
            continue
        before, after = (run.span("reward", line["step"] - 9, line["step"]) for line in (best, last))
        if before.values and after.values and after.mean > before.mean:
            rose = f"the reward rose from {before.mean:.3g} to {after.mean:.3g}"
            why, do = f"while {rose}: the reward does not measure what the questions ask", "Read the best groups"
        else:
            why, do = "and the reward did not rise: training makes the policy worse", "Lower optim.lr"
        better = "; an earlier checkpoint is better (outdo export --best)" if best["step"] > 0 else ""
        yield run.span(name, best["step"]).finding(
            "warning",
            f"held-out accuracy of the {words} answers fell from {_with_interval(best, name)} to "
            f"{_with_interval(last, name)}, {why}. {do}{better}.",
        )


def reward_fell(run: RunMetrics) -> Iterator[Finding]:
    """Report that the mean reward of all sampled groups fell by more than the noise of single steps."""
    name = "refill/reward" if run.span("refill/reward").values else "reward"
    ends = run.first_and_last(name)
    if ends and significant_change(*ends) < 0:
        first, last = ends
        yield Span(name, (*first.steps, *last.steps), (*first.values, *last.values)).finding(
            "warning",
            f"the mean reward fell from {first.mean:.3g} (the first {len(first.steps)} steps) to {last.mean:.3g} (the "
            f"last {len(last.steps)}). Unless the questions have become harder, lower optim.lr.",
        )


def conflicting_reward_parts(run: RunMetrics) -> Iterator[Finding]:
    """Report that one part of the reward rose at the expense of another."""
    names = sorted({name for line in run.lines for name in line if name.startswith("rewards/")})
    ends = {name: found for name in names if (found := run.first_and_last(name))}
    rising = [name for name, (first, last) in ends.items() if significant_change(first, last) > 0]
    for name, (first, last) in ends.items():
        if rising and significant_change(first, last) < 0:
            others = ", ".join(_part(other) for other in rising)
            yield last.finding(
                "warning",
                f"the reward part {_part(name)} fell from {first.mean:.3g} to {last.mean:.3g} while {others} rose. "
                'Change their weights, or standardise each part separately (train.advantage = "gdpo").',
            )


def _part(metric: str) -> str:
    return metric.removeprefix("rewards/").removesuffix("/mean")


def _with_interval(line: Metrics, name: str) -> str:
    low, high = line.get(f"{name}_low"), line.get(f"{name}_high")
    around = "" if low is None or high is None else f" ({low:.1%} to {high:.1%})"
    return f"{line[name]:.1%}{around}"
