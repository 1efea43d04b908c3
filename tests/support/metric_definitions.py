"""A second implementation of every metric of a step, in plain Python, written from the words of its glossary entry.

A definition is a function of a `Case` that returns numbers by name; `UNKNOWN` for one that a case does not determine.
It knows the answers, and for each trained token what was measured: probabilities, entropies, advantages and pushes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from outdo.types import Group, Rollout, Step

UNKNOWN = math.nan
NOISE = 1e-5  # nats: "numerical noise" of the entries

Numbers = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Method:
    """What the objective of a case computes. A trained token is (log πθ, log π_compared, Â)."""

    surrogate: Callable[[float, float, float], float]  # ρ, Â, log πθ -> S
    answer: bool = False  # ρ is that of the whole answer
    bypass: bool = False  # compared with the engine, and not with π_old
    weight: str = "token"  # 1/N of the tokens of an optimiser step; "mean": 1/(A |o|) of its A answers; "sum": 1/A
    cap: float | None = None  # of a correction by π_old / π_rollout
    beta: float = 0.0
    eta: float = 0.0
    teacher_beta: float = 0.0
    ratio: bool = True
    clip: tuple[float, float] | None = None  # low and high of a clip of tokens
    dual: float = math.inf
    lr: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Token:
    """A trained token, with what the last pass measured before its optimiser step."""

    group: int
    row: int
    context: tuple[int, ...]  # the tokens of its conversation up to itself
    advantage: float
    old: float
    now: float
    engine: float
    reference: float | None
    entropy: float
    last_push: float
    policy_push: float  # summed over the passes
    push: float
    new: float | None = None  # log πθ after the step
    target: float | None = None
    teacher: float | None = None  # log π_T; None: no teacher has read the token
    teacher_divergence: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step, and what is known of its method."""

    step: Step
    method: Method
    minibatches: int = 1
    new_logprobs: Any = None  # [B, T]
    values: Any = None  # [B, T]: V before the last pass
    first_gradient: float | None = None  # the norm of the gradient, computed in another way
    tokens: list[Token] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", list(tokens_of(self)))

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.step.groups for rollout in group.rollouts]

    @property
    def scored(self) -> list[list[Rollout]]:
        """Return the answers with a reward, by group; groups without any are left out."""
        groups = [[each for each in group.rollouts if each.status == "ok"] for group in self.step.groups]
        return [group for group in groups if group]


def tokens_of(case: Case) -> Iterable[Token]:
    batch, passes = case.step.batch, [update.tokens for update in case.step.updates if update.tokens]
    if not passes:
        return
    old = passes[0]["logprobs"] if batch.old_logprobs is None else batch.old_logprobs
    rows = [(number, group, rollout) for number, group in enumerate(case.step.groups) for rollout in group.rollouts]
    for b, (number, group, rollout) in enumerate(rows):
        if rollout.status != "ok":
            continue
        first, before = len(group.prompt.token_ids), {}
        forks = dict(rollout.forks)
        for place, token in enumerate(rollout.token_ids):
            previous = forks.get(first + place, first + place - 1)
            before[first + place] = (*before.get(previous, ()), token)
            if not rollout.loss_mask[place]:
                continue
            at = (b, first + place)
            last = passes[-1]
            yield Token(
                group=number,
                row=b,
                context=before[first + place],
                advantage=float(batch.advantages[at]),
                old=float(old[at]),
                now=float(last["logprobs"][at]),
                engine=rollout.logprobs[place],
                reference=None if batch.ref_logprobs is None else float(batch.ref_logprobs[at]),
                entropy=float(last["entropy"][at]),
                last_push=float(last["push"][at]),
                policy_push=sum(float(each["policy_push"][at]) for each in passes),
                push=sum(float(each["push"][at]) for each in passes),
                new=None if case.new_logprobs is None else float(case.new_logprobs[at]),
                target=None if batch.targets is None else float(batch.targets[at]),
                teacher=None if rollout.teacher_prompt is None else float(batch.teacher_logprobs[at]),
                teacher_divergence=float(last["teacher_divergence"][at]) if "teacher_divergence" in last else 0.0,
            )


def mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def share(those: Iterable[bool]) -> float | None:
    return mean(map(float, those))


# ------------------------------------------------------------------------------------------------------------- rewards


def rewards(case: Case) -> Numbers:
    scored = [rollout for group in case.scored for rollout in group]
    numbers: dict[str, float | None] = {"reward": mean(each.reward for each in scored), "num_scored": len(scored)}
    if case.scored:
        groups = [[each.reward for each in group] for group in case.scored]
        numbers |= {
            "num_groups": len(groups),
            "reward_std": deviation([reward for group in groups for reward in group]),
            "reward_group_std": mean(map(deviation, groups)),
            "frac_reward_zero_std": share(max(group) - min(group) < 1e-6 for group in groups),
        }
    if case.step.batch.advantages is not None and case.tokens:
        moving = {each.group for each in case.tokens if each.advantage != 0}
        numbers["frac_zero_advantage"] = 1 - len(moving) / len(case.scored)
    baselines = [group.baseline for group in case.step.groups for each in group.rollouts if each.status == "ok"]
    if baselines and None not in [group.baseline for group in case.step.groups]:
        numbers["baseline"] = fmean(baselines)
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for each in case.rollouts:
        for name, value in each.reward_parts.items():
            parts[name] += [] if value is None else [value]
    numbers |= {f"rewards/{name}/mean": mean(values) for name, values in parts.items()}
    failed = Counter(each.status for each in case.rollouts if each.status != "ok")
    return numbers | {f"reward_status/{status}": count for status, count in failed.items()}


def deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def verdicts(case: Case) -> Numbers:
    groups = [[each.right for each in group if each.right is not None] for group in case.scored]
    groups = [group for group in groups if group]
    if not groups:
        return {}
    missing = sum(each.right is None for group in case.scored for each in group)
    return {
        "num_without_verdict": missing or None,
        "right": share(right for group in groups for right in group),
        "frac_all_right": share(all(group) for group in groups),
        "frac_all_wrong": share(not any(group) for group in groups),
    }


def correlation(groups: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """Pearson's, of differences from the means of the groups."""
    pairs = [(x - fmean(x for x, _ in group), y - fmean(y for _, y in group)) for group in groups for x, y in group]
    scale = math.sqrt(sum(x * x for x, _ in pairs) * sum(y * y for _, y in pairs))
    return sum(x * y for x, y in pairs) / scale if scale > 1e-12 else None


def correlations(case: Case) -> Numbers:
    with_verdict = [
        [(each.reward, float(each.right)) for each in group if each.right is not None] for group in case.scored
    ]
    both = [group for group in with_verdict if all(len(set(values)) > 1 for values in zip(*group, strict=True))]
    alike = [
        [each for each in group if each.right is verdict] for group in case.scored for verdict in (True, False, None)
    ]
    alike = [group for group in alike if group]
    lengths = [[(each.reward, sum(each.loss_mask)) for each in group] for group in alike]
    calls = [[(each.reward, each.counts.get("tools/calls", 0)) for each in group] for group in alike]
    several = [
        {each.reward for each in group if whole(each) == text}
        for group in case.scored
        for text, count in Counter(map(whole, group)).items()
        if count > 1
    ]
    return {
        "reward_right_correlation": correlation(group for group in both if group),
        "reward_length_correlation": correlation(lengths),
        "reward_calls_correlation": correlation(calls),
        "reward_disagreement": share(len(found) > 1 for found in several),
    }


def whole(answer: Rollout) -> object:
    """What is equal for equal answers: the text, of an episode all of its tokens."""
    return answer.text if all(answer.loss_mask) else answer.token_ids


# ------------------------------------------------------------------------------------------------------------- answers


def answers(case: Case) -> Numbers:
    lengths = [sum(each.loss_mask) for each in case.rollouts]
    others = sum(len(each.token_ids) for each in case.rollouts) - sum(lengths)
    return {
        "completions/mean_length": mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": share(each.truncated for each in case.rollouts),
        "num_completions": len(lengths),
        "num_tokens": sum(lengths),
        "num_environment_tokens": others or None,
    }


def words(text: str) -> list[str]:
    """Words, and signs one by one, in small letters."""
    found, word = [], ""
    for letter in text.lower() + " ":
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        found += [word] if word else []
        found += [] if letter.isspace() else [letter]
        word = ""
    return found


def question_text(group: Group) -> str:
    text = group.prompt.text
    return text if isinstance(text, str) else " ".join(str(message.get("content", "")) for message in text)


def texts(case: Case) -> Numbers:
    groups = [group.rollouts for group in case.step.groups]

    def elsewhere(key: Callable[[Rollout], object]) -> float | None:
        if len(groups) < 2:
            return None
        return share(
            any(key(each) == key(other) for at, others in enumerate(groups) if at != place for other in others)
            for place, group in enumerate(groups)
            for each in group
        )

    def own(each: Rollout) -> object:
        if all(each.loss_mask):
            return tuple(words(each.text))
        return [token for token, own in zip(each.token_ids, each.loss_mask, strict=True) if own]

    repeated = []
    for each in case.rollouts:
        pairs = list(zip(words(each.text), words(each.text)[1:], strict=False))
        repeated.append(sum(pair in pairs[:place] for place, pair in enumerate(pairs)) / len(pairs) if pairs else 0.0)
    little = [
        sum(word.replace("_", "a").isalnum() for word in dict.fromkeys(words(each.text)) if word not in question) <= 2
        for group in case.step.groups
        for question in [words(question_text(group))]
        for each in group.rollouts
    ]
    again = [whole(each) in map(whole, group[:place]) for group in groups for place, each in enumerate(group) if place]
    return {
        "completions/empty_ratio": share(each.text.strip() == "" for each in case.rollouts),
        "completions/identical_ratio": share(again),
        "completions/identical_across_ratio": elsewhere(own),
        "completions/same_beginning_ratio": elsewhere(lambda each: words(each.text)[:3]),
        "completions/repeated_ratio": mean(repeated),
        "completions/question_words_ratio": share(little),
    }


def turns(rollout: Rollout) -> int:
    """Runs of sampled tokens; a fork begins another."""
    forks = {column for column, _ in rollout.forks}
    return sum(
        sampled and (place == 0 or not rollout.loss_mask[place - 1] or place + rollout_start(rollout) in forks)
        for place, sampled in enumerate(rollout.loss_mask)
    )


def rollout_start(rollout: Rollout) -> int:
    """The length of the prompt, which the columns of forks include: `made_groups` has prompts of two tokens."""
    return 2


def episodes(case: Case) -> Numbers:
    numbers: dict[str, float | None] = {}
    events: Counter[str] = Counter()
    for each in case.rollouts:
        for name, count in each.counts.items():
            events[name] += count
    numbers |= events
    counts = [turns(each) for each in case.rollouts]
    if max(counts) > 1:
        numbers["completions/mean_turns"] = mean(counts)
        numbers["completions/turns_ratio"] = share(each.finish_reason == "turns" for each in case.rollouts)
    if "engine/tokens_read" in events:
        numbers["engine/tokens_read_per_sampled"] = events["engine/tokens_read"] / sum(
            sum(each.loss_mask) for each in case.rollouts
        )
    for name in [name for name in events if name.startswith("environments/")]:
        numbers[f"{name}/reward"] = mean(e.reward for e in case.rollouts if name in e.counts and e.status == "ok")
    calls = [each.counts["tools/calls"] for each in case.rollouts if "tools/calls" in each.counts]
    if calls:
        failed = events["tools/unknown"] + events["tools/raised"] + events["tools/timed_out"]
        numbers |= {"tools/fewest_calls": min(calls), "tools/most_calls": max(calls)}
        numbers |= {
            "tools/unparsed_ratio": events["tools/unparsed"] / sum(calls),
            "tools/failed_ratio": failed / sum(calls),
        }
    for each in case.rollouts:
        for name, seconds in each.tool_seconds.items():
            numbers[f"tools/calls/{name}"] = (numbers.get(f"tools/calls/{name}") or 0) + len(seconds)
            numbers[f"tools/seconds/{name}"] = (numbers.get(f"tools/seconds/{name}") or 0) + sum(seconds)
    return numbers


# -------------------------------------------------------------------------------------------------------------- tokens


def compared(case: Case, token: Token) -> float:
    return token.engine if case.method.bypass else token.old


def ratios(case: Case) -> dict[int, float]:
    """The ratio that the objective compares, by the identity of a token."""
    rows: defaultdict[int, list[Token]] = defaultdict(list)
    for each in case.tokens:
        rows[each.row].append(each)
    found = {}
    for row in rows.values():
        gaps = [each.now - compared(case, each) for each in row]
        for each, gap in zip(row, gaps, strict=True):
            found[id(each)] = math.exp(fmean(gaps) if case.method.answer else gap)
    return found


def of_tokens(case: Case) -> Numbers:
    if not case.tokens:
        return {}
    gaps = sorted(abs(each.old - each.engine) for each in case.tokens)
    weights = [math.exp(each.old - each.engine) for each in case.tokens]
    numbers: dict[str, float | None] = {
        "num_trained_tokens": len(case.tokens),
        "advantage": mean(each.advantage for each in case.tokens),
        "entropy": mean(each.entropy for each in case.tokens),
        "sampling/sampling_logp_difference/mean": mean(gaps),
        "sampling/sampling_logp_difference/max": gaps[-1],
        "sampling/sampling_logp_difference/p99": gaps[math.ceil(0.99 * len(gaps)) - 1],
        "sampling/sampling_logp_difference/far": share(gap > 0.1 for gap in gaps),
        "sampling/effective_sample_size": sum(weights) ** 2 / (len(weights) * sum(each**2 for each in weights)),
    }
    if case.tokens[0].reference is not None:
        apart = [(each.reference - each.now, each.now - each.old) for each in case.tokens]
        numbers["kl"] = mean(math.exp(rho) * (math.exp(gap) - 1 - gap) for gap, rho in apart)
    if case.method.teacher_beta:
        taught = [each for each in case.tokens if each.teacher is not None]
        numbers["teacher/taught_ratio"] = len(taught) / len(case.tokens)
        numbers["teacher/gap"] = mean(each.old - each.teacher for each in taught)
        numbers["teacher/divergence"] = mean(each.teacher_divergence for each in taught)
        numbers |= of_openings(taught) | of_right_answers(case, taught)
    if case.method.cap is not None:
        factors = [
            min(case.method.cap, math.exp((e.now if case.method.bypass else e.old) - e.engine)) for e in case.tokens
        ]
        numbers["sampling/corrected"] = share(abs(factor - 1) > 0.01 for factor in factors)
    return numbers


def of_openings(taught: list[Token]) -> Numbers:
    """Of each answer the first eight tokens, and the others."""
    seen: Counter[int] = Counter()
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for token in taught:
        gaps[seen[token.row] < 8].append(token.old - token.teacher)
        seen[token.row] += 1
    found = {"teacher/opening_gap": mean(gaps[True]), "teacher/later_gap": mean(gaps[False])}
    return {name: value for name, value in found.items() if value is not None}


def of_right_answers(case: Case, taught: list[Token]) -> Numbers:
    found = []
    for group in {token.group for token in taught}:
        tokens = [token for token in taught if token.group == group]
        middle = fmean(token.teacher - token.old for token in tokens)
        sums: dict[Any, list[float]] = {True: [], False: [], None: []}
        for row in {token.row for token in tokens}:
            deltas = [token.teacher - token.old - middle for token in tokens if token.row == row]
            sums[case.rollouts[row].right].append(sum(deltas))
        if sums[True] and sums[False]:
            found.append(fmean(sums[True]) - fmean(sums[False]))
    return {"teacher/right_minus_wrong": fmean(found)} if found else {}


def clipped(case: Case) -> Numbers:
    names = [f"clip_ratio/{which}_mean" for which in ("low", "high", "dual", "region")]
    if not case.method.ratio or not case.tokens:
        return {}
    if case.method.clip is None:
        return dict.fromkeys(set(names) - {"clip_ratio/dual_mean"}, 0.0)
    low, high = case.method.clip
    found = ratios(case)
    pairs = [(found[id(each)], each.advantage) for each in case.tokens]
    places = [
        [a < 0 and ratio < 1 - low, a > 0 and ratio > 1 + high, a < 0 and ratio > case.method.dual]
        for ratio, a in pairs
    ]
    shares = [share(place) for place in zip(*places, strict=True)]
    return dict(zip(names, [*shares[:2], shares[2] or None, sum(shares)], strict=True))


def terms(case: Case) -> Numbers:
    """Means over the optimiser steps of the last pass, of which each has the groups of a minibatch."""
    method, found = case.method, ratios(case)
    numbers = list(range(len(case.step.groups)))
    size, larger = divmod(len(numbers), case.minibatches)
    sizes = [size + (place < larger) for place in range(case.minibatches)]
    steps = []
    for place in range(case.minibatches):
        part = set(numbers[sum(sizes[:place]) : sum(sizes[: place + 1])])
        tokens = [each for each in case.tokens if each.group in part]
        if not tokens:
            continue
        lengths = Counter(each.row for each in tokens)
        sums = Counter()
        for each in tokens:
            w = {"token": 1 / len(tokens), "sum": 1 / len(lengths)}.get(method.weight)
            w = 1 / (len(lengths) * lengths[each.row]) if w is None else w
            trainer = each.now if method.bypass else each.old
            c = 1.0 if method.cap is None else min(method.cap, math.exp(trainer - each.engine))
            sums["policy"] += w * c * method.surrogate(found[id(each)], each.advantage, each.now)
            if each.reference is not None:
                gap = each.reference - each.now
                sums["divergence"] += w * method.beta * (math.exp(gap) - 1 - gap)
            sums["entropy"] += w * method.eta * each.entropy
            sums["teacher"] += w * method.teacher_beta * each.teacher_divergence
        steps.append([sums["policy"], sums["divergence"], sums["entropy"], sums["teacher"]])
    policy, divergence, entropy, teacher = (mean(values) for values in zip(*steps, strict=True))
    return {
        **({"loss/teacher": teacher} if method.teacher_beta else {}),
        "loss/policy": policy,
        "loss/divergence": divergence,
        "loss/entropy": entropy,
        "loss": -(policy - divergence + entropy) + teacher,
        "learning_rate": method.lr,
        "grad_norm": UNKNOWN if case.first_gradient is None else case.first_gradient,
    }


def passes(case: Case) -> Numbers:
    groups = [{each.group for each in case.tokens if each.last_push != 0}]
    empty = case.minibatches == 1 and not groups[0]
    return {
        "passes/done": len(case.step.updates),
        f"passes/stopped/{case.step.stopped}": 1,
        "updates/refused": 0,
        "updates/empty": float(empty) if case.minibatches == 1 else UNKNOWN,
    }


# ------------------------------------------------------------------------------------------------------------ movement


@dataclass(frozen=True)
class Distinct:
    """A token that one or several answers of a group have in the same context: it counts once."""

    token: Token
    net: float
    bound: float | None


def distinct(case: Case) -> list[Distinct]:
    same: defaultdict[tuple[Any, ...], list[Token]] = defaultdict(list)
    for each in case.tokens:
        same[each.group, each.context].append(each)
    found = []
    for tokens in same.values():
        net = math.fsum(each.push for each in tokens)
        net = net if abs(net) > 1e-4 * math.fsum(abs(each.push) for each in tokens) else 0.0
        found += [Distinct(each, net, bound_of(case, each)) for each in tokens]
    return found


def bound_of(case: Case, token: Token) -> float | None:
    """Where the objective stops pushing: a target, or the edge of a clip of tokens."""
    if token.target is not None:
        return token.target
    if case.method.clip is None or case.method.answer or token.advantage == 0:
        return None
    low, high = case.method.clip
    return compared(case, token) + math.log(1 + high if token.advantage > 0 else 1 - low)


def movement(case: Case) -> Numbers:
    if case.new_logprobs is None or not case.tokens:
        return {}
    found = distinct(case)
    weight = Counter((each.token.group, each.token.context) for each in found)
    shares = {id(each): 1 / weight[each.token.group, each.token.context] for each in found}
    net = math.fsum(shares[id(each)] * abs(each.net) for each in found)
    push = math.fsum(abs(each.push) for each in case.tokens)
    pushed = [each for each in found if each.net != 0]
    leverage = [shares[id(each)] * abs(each.net) * (1 - math.exp(each.token.old)) for each in pushed]
    moves = [(each.token.new - each.token.old) * math.copysign(1, each.net) for each in pushed]
    gaps = [each.new - each.old for each in case.tokens]
    policy = [(abs(e.policy_push), abs(e.push - e.policy_push)) for e in case.tokens if e.policy_push != 0]
    numbers: dict[str, float | None] = {
        "moved_as_intended": sum(w for w, m in zip(leverage, moves, strict=True) if m > NOISE) / sum(leverage),
        "moved_wrong_way": sum(w for w, m in zip(leverage, moves, strict=True) if m < -NOISE) / sum(leverage),
        "moved_not": sum(w for w, m in zip(leverage, moves, strict=True) if abs(m) <= NOISE) / sum(leverage),
        "moved/tokens": len({(each.token.group, each.token.context) for each in pushed}),
        "moved/groups": len({each.token.group for each in pushed}),
        "step_kl": mean(math.exp(gap) - 1 - gap for gap in gaps),
        "cancelled": 1 - net / push,
        "certain": math.fsum(shares[id(e)] * abs(e.net) for e in found if math.exp(e.token.old) > 0.99) / net,
        "regularisation": sum(pull for _, pull in policy) / sum(own + pull for own, pull in policy),
    }
    return numbers | bounds(case, found, shares)


def bounds(case: Case, found: Sequence[Distinct], shares: Mapping[int, float]) -> Numbers:
    names = ("target_reached", "overshoot", "attained", "unreachable")
    if case.method.bypass or all(each.bound is None for each in found):
        return dict.fromkeys(names, UNKNOWN)
    with_bound = [each for each in found if each.token.push != 0 and each.bound is not None]
    beyond = sum(shares[id(each)] for each in with_bound if each.bound > -1e-6)
    far = [each for each in with_bound if each.bound > -1e-6 or abs(each.bound - each.token.old) > NOISE]
    there = [e for e in with_bound if e.bound <= -1e-6 and e.net * e.token.push > 0 and e in far]
    numbers = way(there, shares, lambda each: (each.token.old, each.token.new, each.bound))
    return {
        "target_reached": numbers["beyond or near"],
        "overshoot": numbers["beyond"],
        "attained": numbers["attained"],
        "unreachable": UNKNOWN if case.step.batch.targets is not None else beyond / sum(shares[id(e)] for e in far),
    }


def way(
    those: Sequence[Distinct], shares: Mapping[int, float], ends: Callable[[Distinct], Any]
) -> dict[str, float | None]:
    """How far tokens went on the way from π_old to an end: shares of the tokens, and of the probability."""
    if not those:
        return dict.fromkeys(("near", "beyond or near", "beyond", "wrong", "attained"))
    whole = sum(shares[id(each)] for each in those)
    counts, wanted, moved = Counter(), 0.0, 0.0
    for each in those:
        old, now, end = ends(each)
        progress, weight = (now - old) / (end - old), shares[id(each)]
        counts["near"] += weight * (abs(progress - 1) <= 0.1)
        counts["beyond or near"] += weight * (progress >= 0.9)
        counts["beyond"] += weight * (progress > 1.1)
        counts["wrong"] += weight * (progress < 0 and abs(now - old) > NOISE)
        change = math.exp(end) - math.exp(old)
        wanted += weight * abs(change)
        moved += weight * min(abs(change), math.copysign(1, change) * (math.exp(now) - math.exp(old)))
    names = ("near", "beyond or near", "beyond", "wrong")
    return {name: counts[name] / whole for name in names} | {"attained": moved / wanted}


def targets(case: Case) -> Numbers:
    if case.step.batch.targets is None or not case.tokens:
        return {}
    found = [Distinct(each, 0.0, each.target) for each in case.tokens]
    weight = Counter((each.token.group, each.token.context) for each in found)
    shares = {id(each): 1 / weight[each.token.group, each.token.context] for each in found}
    those = [each for each in found if abs(each.bound - each.token.old) > NOISE]
    numbers = way(those, shares, lambda each: (each.token.old, each.token.now, each.bound))
    return {
        "target/attained": numbers["attained"],
        "target/reached": numbers["near"],
        "target/wrong_way": numbers["wrong"],
        "target/overshoot": numbers["beyond"],
        "target/unreachable": UNKNOWN,
    }


def critic(case: Case) -> Numbers:
    if case.values is None:
        return {}
    batch = case.step.batch
    mask = batch.loss_mask
    old, now, returns = (each[mask].tolist() for each in (batch.values, case.values, batch.returns))
    rows = list(zip(old, now, returns, strict=True))
    errors = [((v - r) ** 2, (min(max(v, o - 0.2), o + 0.2) - r) ** 2) for o, v, r in rows]
    centre = fmean(returns)
    spread = [r - v for _, v, r in rows]
    return {
        "value/loss": fmean(max(pair) for pair in errors) / 2,
        "value/clipped": share(near > error for error, near in errors),
        "value/explained_variance": 1
        - fmean((each - fmean(spread)) ** 2 for each in spread) / fmean((each - centre) ** 2 for each in returns),
        "value/learning_rate": 1e-2,
        "value/refused": 0,
        "value/empty": 0,
        "value/grad_norm": UNKNOWN,
    }


DEFINITIONS = (
    *(rewards, verdicts, correlations, answers, texts, episodes, of_tokens, clipped, terms, passes),
    *(movement, targets, critic),
)


def defined(case: Case) -> dict[str, float]:
    """Return all metrics of a case; without those that it does not write."""
    found: dict[str, float] = {}
    for definition in DEFINITIONS:
        found |= {name: float(value) for name, value in definition(case).items() if value is not None}
    return found
