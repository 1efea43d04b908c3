"""Compute what an objective does to the probability of one token: how fast and how far it moves it, where it stops.

The token is the whole answer; all other tokens together are "the rest". This works for any objective: it is
differentiated at every probability π that the token can have, and no equation is built in. A `ComposedObjective` is
evaluated with weight 1, as in the papers; its own weight is one of the `factors`. All gradients are with respect to the
probability, dJ/dπ = (dJ/dlog π) / π; at a kink they are those of the side of π_old.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective, Objective, given
from outdo.algorithms.objectives.weights import total
from outdo.extras.record.bounds import bounds, policy_push, scores_of
from outdo.types import Batch, Terms, TokenScores
from outdo.utils.errors import UserError

FARTHEST = (1e-6, 30.0)
"""The search range around π_old, as ratios: no clamp of log-ratios or saturated sigmoid acts inside it."""
STEPS = 2001  # grid points of one search
SCAN_STEPS, BISECTIONS = 64, 50  # steps and bisections of the search for the bound: to the last digit
KINK_OFFSET = 1e-10  # share of the way back to π_old: gradients are taken on that side of a kink
OTHER_PROBABILITY = 1e-9  # probability of the tokens of the group's other answers

Signs = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The values of the objective at one πθ: a row of a worked example."""

    old: float  # π_old
    new: float  # πθ
    ref: float | None  # π_ref; None where the objective has no reference
    advantage: float  # Â
    ratio: float  # πθ / π_old
    clipped_ratio: float | None  # objective / Â; None if this is not a ratio (not 1 at π_old) or Â is 0
    objective: float  # the policy term, without divergence and entropy
    divergence: float  # β · D, as it is subtracted
    entropy: float  # η · H, of {the token, the rest}
    policy_gradient: float  # dJ/dπ of the policy term
    divergence_gradient: float  # of - β · D
    entropy_gradient: float  # of η · H
    gradient: float  # of all of them

    @property
    def value(self) -> float:
        """J: the sum of all terms."""
        return self.objective - self.divergence + self.entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A probability at which the gradient of the whole objective changes sign."""

    probability: float
    kind: str  # "maximum" or "minimum"
    kink: bool  # the gradient jumps over 0; otherwise it is 0 there, and the point is stationary


class Factor(NamedTuple):
    """One factor of how fast the probability moves."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Point):
    """One point, and the bounds, turns and factors of the objective."""

    coefficient: float  # the factor of ∇ log πθ at πθ = π_old; DeepSeekMath (arXiv 2402.03300) equation 21
    factors: tuple[Factor, ...]  # how fast
    flat: tuple[tuple[float, float], ...]  # intervals of π in (0, 1) on which the policy term has no gradient
    turns: tuple[Turn, ...]  # of all terms together, in (0, 1)
    bound: float | None  # π at which the policy term stops pulling; it can be above 1
    reachable: bool | None  # whether a probability can reach the bound: it is below 1
    destination: float  # where any number of sufficiently small updates ends: how far

    def details(self) -> dict[str, Any]:
        """Return everything except the point as plain values for JSON."""
        names = ("coefficient", "flat", "bound", "reachable", "destination")
        properties = {name: getattr(self, name) for name in names}
        return properties | {"factors": dict(self.factors), "turns": [asdict(turn) for turn in self.turns]}


def explain(
    objective: Objective,
    *,
    old: float,
    new: float,
    advantage: float,
    ref: float | None = None,
    group: int = 1,
    length: int = 1,
) -> Explanation:
    """Explain `objective` for a token with probability `old` when it was sampled and `new` now.

    `ref` is its probability under the reference; by default that of the old policy. `group` is the number of answers
    per question, `length` of tokens per answer: only the `factors` use them. Raises `UserError` for invalid values.
    """
    _raise_if_any(mistakes_in(old=old, news=[new], advantage=advantage, ref=ref, group=group, length=length))
    token = _Token.of(objective, old=old, advantage=advantage, ref=ref)
    (point,) = token.points([new])
    bound = token.bound()
    return Explanation(
        **asdict(point),
        coefficient=token.gradients(_tensor(old)).total.item() * old,
        factors=tuple(_factors(objective, token, group, length)),
        flat=tuple(token.flat()),
        turns=tuple(token.turns()),
        bound=bound,
        reachable=None if bound is None else bound < 1,
        destination=token.destination(),
    )


def table(
    objective: Objective, *, old: float, news: Sequence[float], advantage: float, ref: float | None = None
) -> tuple[Point, ...]:
    """Return the objective at several πθ: a worked example. Raises `UserError` for invalid values."""
    _raise_if_any(mistakes_in(old=old, news=news, advantage=advantage, ref=ref))
    token = _Token.of(objective, old=old, advantage=advantage, ref=ref)
    return tuple(token.points(news))


def mistakes_in(
    *, old: float, news: Sequence[float], advantage: float, ref: float | None, group: int = 1, length: int = 1
) -> list[str]:
    """Return one sentence for each invalid value."""
    probabilities = {"old": [old], "new": news, "ref": [] if ref is None else [ref]}
    problems = [
        f"{name}: a probability is above 0 and at most 1, not {value:g}"
        for name, values in probabilities.items()
        for value in values
        if not 0 < value <= 1
    ]
    if not math.isfinite(advantage):
        problems.append(f"advantage: expected a finite number, not {advantage:g}")
    counts = {"group": group, "length": length}
    return problems + [f"{name}: expected 1 or more, not {value}" for name, value in counts.items() if value < 1]


def _raise_if_any(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise UserError(mistakes)


# --------------------------------------------------------------------------------------------- evaluating an objective


class _Gradients(NamedTuple):
    """dJ/dπ of each term, [N] each."""

    policy: Tensor
    divergence: Tensor
    entropy: Tensor

    @property
    def total(self) -> Tensor:
        return self.policy + self.divergence + self.entropy


@dataclass(frozen=True, slots=True)
class _Token:
    """An objective, and a batch with the one token."""

    objective: Objective
    batch: Batch  # [1, 2]: a prompt of one token, and the token
    old: float
    advantage: float
    ref: float | None

    @classmethod
    def of(cls, objective: Objective, *, old: float, advantage: float, ref: float | None) -> "_Token":
        if isinstance(objective, ComposedObjective):
            objective = replace(objective, weight=total)
        reference = (ref or old) if objective.requires.reference else None
        return cls(
            objective, _batch_of_completions(old=old, advantage=advantage, ref=reference), old, advantage, reference
        )

    def terms(self, probabilities: Tensor) -> Terms:
        """Compute the terms of N such tokens together, each with its own πθ and its own group. [N] -> scalars"""
        rows = self.batch.rows(torch.zeros(len(probabilities), dtype=torch.int64))  # totals stay those of one token
        rows = self.objective.prepare(rows.with_(group=torch.arange(len(probabilities))))
        return self.objective(_scores(probabilities, self.objective), rows)

    def gradients(self, probabilities: Tensor) -> _Gradients:
        """Compute dJ/dπ at each of the probabilities [N]."""
        leaf = probabilities.clone().requires_grad_()
        terms = self.terms(leaf)
        return _Gradients(
            _gradient_of(terms.policy, leaf),
            0.0 - _gradient_of(terms.divergence, leaf),
            _gradient_of(terms.entropy, leaf),
        )

    def points(self, news: Sequence[float]) -> Iterator[Point]:
        """Yield the objective at each πθ."""
        near = torch.tensor([new + (self.old - new) * KINK_OFFSET for new in news], dtype=torch.float64)
        gradients = self.gradients(near)
        at_old = self.terms(_tensor(self.old)).policy.item()
        is_ratio = self.advantage != 0 and math.isclose(at_old, self.advantage, rel_tol=1e-9)
        for n, new in enumerate(news):
            terms = self.terms(_tensor(new))
            yield Point(
                old=self.old,
                new=new,
                ref=self.ref,
                advantage=self.advantage,
                ratio=new / self.old,
                clipped_ratio=terms.policy.item() / self.advantage if is_ratio else None,
                objective=terms.policy.item(),
                divergence=terms.divergence.item(),
                entropy=terms.entropy.item(),
                policy_gradient=gradients.policy[n].item(),
                divergence_gradient=gradients.divergence[n].item(),
                entropy_gradient=gradients.entropy[n].item(),
                gradient=gradients.total[n].item(),
            )

    def policy_direction(self, probabilities: Tensor) -> Tensor:
        """Return the direction in which the policy term moves the probability: 1 up, -1 down, 0 none. [N]"""
        return self.gradients(probabilities).policy.sign()

    def total_direction(self, probabilities: Tensor) -> Tensor:
        """Return the direction in which all terms together move it. [N]"""
        return self.gradients(probabilities).total.sign()

    def bound(self) -> float | None:
        """Return where the policy term alone stops pulling in its direction at π_old; it can be above 1."""
        batch = self.objective.prepare(self.batch)
        push = policy_push(self.objective, batch, given(batch.old_logprobs, "old_logprobs"))
        farthest = abs(math.log(FARTHEST[1 if push.sum() > 0 else 0]))
        logprobs = bounds(self.objective, batch, push, farthest=farthest, scan_steps=SCAN_STEPS, bisections=BISECTIONS)
        at = logprobs[0, 1].item()
        return None if math.isnan(at) else math.exp(at)

    def destination(self) -> float:
        """Return the first probability, starting from π_old and moving uphill, at which the objective stops rising."""
        at_old = self.total_direction(_tensor(self.old)).item()
        if at_old == 0:
            return self.old
        up = at_old > 0
        turn = _first_change(self.total_direction, self.old, 1.0 if up else self.old * FARTHEST[0])
        return (1.0 if up else 0.0) if turn is None else turn

    def flat(self) -> Iterator[tuple[float, float]]:
        """Yield the intervals on which the policy term has no gradient."""

        def has_gradient(probabilities: Tensor) -> Tensor:
            return self.policy_direction(probabilities).abs()

        grid = self._grid()
        zero = (has_gradient(grid) == 0).tolist()
        for first, last in _true_intervals(zero):
            low = 0.0 if first == 0 else _change_place(has_gradient, grid[first], grid[first - 1])
            high = 1.0 if last == len(zero) - 1 else _change_place(has_gradient, grid[last], grid[last + 1])
            if high - low > KINK_OFFSET:  # a single zero is a target, not an interval
                yield low, high

    def turns(self) -> Iterator[Turn]:
        """Yield the probabilities at which the gradient of all terms together changes sign."""
        grid = self._grid()
        signs = self.total_direction(grid)
        moving = signs.nonzero().squeeze(1).tolist()
        for before, after in pairwise(moving):
            if signs[before] * signs[after] < 0:
                at = _change_place(self.total_direction, grid[before], grid[after])
                near, far = (self.gradients(_neighbours(at, share)).total.abs() for share in (KINK_OFFSET, 1e-4))
                kink = bool((near > 1e-2 * far).any())  # a gradient that passes through 0 is small on both sides
                yield Turn(probability=at, kind="maximum" if signs[before] > 0 else "minimum", kink=kink)

    def _grid(self) -> Tensor:
        """Return probabilities in (0, 1), dense at both ends."""
        low = self.old * FARTHEST[0]
        return torch.linspace(math.log(low / (1 - low)), 20.0, STEPS, dtype=torch.float64).sigmoid()


def _batch_of_completions(*, old: float, advantage: float, ref: float | None, group: int = 1, length: int = 1) -> Batch:
    """Return different answers to one question, [group, 1 + length]; the first one repeats the token to explain."""
    completions = [(2 + number,) * length for number in range(group)]
    batch = Batch.of_tokens([(1,)] * group, completions, group=[0] * group)
    first = torch.arange(group)[:, None] == 0  # [group, 1]

    def filled(value: float, elsewhere: float) -> Tensor:
        values = torch.where(first, _tensor(value), _tensor(elsewhere))
        return values.expand_as(batch.loss_mask).where(batch.loss_mask, 0.0)

    old_logprobs = filled(math.log(old), math.log(OTHER_PROBABILITY))
    return batch.with_(
        rewards=torch.full_like(batch.rewards, advantage),
        old_logprobs=old_logprobs,
        rollout_logprobs=old_logprobs,
        old_sums={"entropy": filled(_entropy(_tensor(old)).item(), 0.0)},
        ref_logprobs=None if ref is None else filled(math.log(ref), math.log(OTHER_PROBABILITY)),
        advantages=filled(advantage, 0.0),
    )


def _scores(probabilities: Tensor, objective: Objective) -> TokenScores:
    """Return the scores of N answers of one token: [N] -> [N, 2]. The vocabulary is {the token, the rest}."""
    logits = torch.stack([probabilities.log(), (1 - probabilities).log()], dim=1)
    sums = {name: compute(logits, torch.ones_like(probabilities)) for name, compute in objective.requires.sums.items()}
    sums["entropy"] = _entropy(probabilities)  # exact where the rest has the probability 0
    logprobs, *values = (torch.nn.functional.pad(column[:, None], (1, 0)) for column in (logits[:, 0], *sums.values()))
    return TokenScores(logprobs=logprobs, sums=dict(zip(sums, values, strict=True)))


def _entropy(probability: Tensor) -> Tensor:
    """Return the entropy of {the token, the rest} in nats."""
    return torch.special.entr(probability) + torch.special.entr(1 - probability)


def _gradient_of(term: Tensor, leaf: Tensor) -> Tensor:
    """Return the gradient of a term; 0 if it does not depend on the leaf."""
    if not term.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(term, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient


def _factors(objective: Objective, token: _Token, group: int, length: int) -> Iterator[Factor]:
    """Measure what sets how fast: the parts of the weight, the advantage, and the pull of the reference."""
    unit = _Token.of(objective, old=token.old, advantage=math.copysign(1.0, token.advantage), ref=token.ref)
    push = unit.gradients(_tensor(token.old)).policy.item() * token.old
    gradients = token.gradients(_tensor(token.old))
    if push:
        alone, grouped, whole = (
            _weighted(objective, unit, *size) / push for size in ((1, 1), (group, 1), (group, length))
        )
        if not math.isclose(alone, 1):
            yield Factor("one answer of one token", alone)
        if alone and grouped:
            yield Factor(f"a group of {group}", grouped / alone)
            yield Factor(f"an answer of {length}", whole / grouped)
        yield Factor("the size of Â", gradients.policy.item() * token.old / push)
    if token.ref is not None:
        yield Factor("the reference's pull", gradients.divergence.item() * token.old)


def _weighted(objective: Objective, unit: _Token, group: int, length: int) -> float:
    """Compute dJ/dlog π of one token of a whole group, with the objective's own weight, at πθ = π_old."""
    batch = _batch_of_completions(old=unit.old, advantage=unit.advantage, ref=unit.ref, group=group, length=length)
    assert batch.old_logprobs is not None
    leaf = batch.old_logprobs.clone().requires_grad_()
    terms = objective(scores_of(objective, leaf), objective.prepare(batch))
    return _gradient_of(terms.policy, leaf)[0, 1].item()


# --------------------------------------------------------------------------------------------------- finding a change


def _first_change(signs: Signs, start: float, end: float) -> float | None:
    """Return the first place from `start` to `end` at which the sign differs from that at `start`; None without one."""
    way = torch.linspace(math.log(start), math.log(end), STEPS, dtype=torch.float64).exp()
    way[0] = start
    changed = _changed(signs(way)).nonzero()
    return _change_place(signs, way[changed[0, 0] - 1], way[changed[0, 0]]) if len(changed) else None


def _change_place(signs: Signs, start: Tensor, end: Tensor) -> float:
    """Return where the sign first changes between `start` and `end`, whose signs differ, to the last digit."""
    for _ in range(6):
        way = torch.lerp(start, end, torch.linspace(0, 1, STEPS, dtype=torch.float64))
        changed = _changed(signs(way)).nonzero()
        if not len(changed):  # as close as rounding allows
            break
        start, end = way[changed[0, 0] - 1], way[changed[0, 0]]
    return ((start + end) / 2).item()


def _changed(signs: Tensor) -> Tensor:
    """Return where a sign differs from the first; NaN, beyond a probability of 1, does not count as different."""
    return (signs != signs[0]) & ~signs.isnan()


def _neighbours(probability: float, share: float) -> Tensor:
    """Return a probability slightly below and one slightly above, within (0, 1). [2]"""
    step = share * probability * (1 - probability)
    return torch.tensor([probability - step, probability + step], dtype=torch.float64)


def _true_intervals(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Return the first and last index of every run of True."""
    bounds = [False, *flags, False]
    starts = [n for n in range(len(flags)) if bounds[n + 1] and not bounds[n]]
    ends = [n for n in range(len(flags)) if bounds[n + 1] and not bounds[n + 2]]
    return zip(starts, ends, strict=True)


def _tensor(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)
