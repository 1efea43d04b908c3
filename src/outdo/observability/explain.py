"""What an objective does to the probability of one token: how fast it moves it, how far, and where it stops.

The token is the whole answer, and what is not the token is "the rest". Any objective can be asked: it is differentiated
at every probability π that the token may have, and nothing here knows its equation. A `ComposedObjective` is asked with
weight 1, as the papers print it; its own weight is one of the `factors`. All gradients are by the probability, dJ/dπ =
(dJ/dlog π) / π, and at a kink they are those of the side on which π_old lies.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.algorithms.objectives.weights import total
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Terms, TokenScores
from outdo.utils.errors import UserError

FARTHEST = (1e-6, 30.0)
"""How far from π_old is looked, as ratios: where neither limits on log-ratios nor a saturated sigmoid count."""
STEPS = 2001  # of one look
ASIDE = 1e-10  # of the way back to π_old: the side of a kink from which a gradient is taken
ELSEWHERE = 1e-9  # probability of the tokens of the group's other answers

Signs = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The objective at one πθ: a row of a worked example."""

    old: float  # π_old
    new: float  # πθ
    ref: float | None  # π_ref; None where the objective has no reference
    advantage: float  # Â
    ratio: float  # πθ / π_old
    clipped_ratio: float | None  # objective / Â; None where that is no ratio (it is not 1 at π_old) or Â is 0
    objective: float  # the policy term, without divergence and entropy
    divergence: float  # β · D, as it is subtracted
    entropy: float  # η · H, of {the token, the rest}
    policy_gradient: float  # dJ/dπ of the policy term
    divergence_gradient: float  # of - β · D
    entropy_gradient: float  # of η · H
    gradient: float  # of all of them

    @property
    def value(self) -> float:
        """J: all terms."""
        return self.objective - self.divergence + self.entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A probability at which the whole objective has its gradient change sign."""

    probability: float
    kind: str  # "maximum" or "minimum"
    kink: bool  # the gradient jumps over 0; else it passes through it, and the point is stationary


class Factor(NamedTuple):
    """One of the things that set how fast the probability moves."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Point):
    """One point and all that surrounds it."""

    coefficient: float  # what ∇ log πθ is multiplied with at πθ = π_old; DeepSeekMath (arXiv 2402.03300) equation 21
    factors: tuple[Factor, ...]  # how fast
    flat: tuple[tuple[float, float], ...]  # intervals of π in (0, 1) on which the policy term has no gradient
    turns: tuple[Turn, ...]  # of all terms together, in (0, 1)
    bound: float | None  # π at which the policy term stops pulling; it may be above 1
    reachable: bool | None  # whether a probability can be there: the bound is below 1
    destination: float  # where any number of small enough updates ends: how much

    def surroundings(self) -> dict[str, Any]:
        """Plain values, ready for JSON, of all but the point."""
        names = ("coefficient", "flat", "bound", "reachable", "destination")
        own = {name: getattr(self, name) for name in names}
        return own | {"factors": dict(self.factors), "turns": [asdict(turn) for turn in self.turns]}


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
    """What `objective` says of a token with probability `old` when it was sampled and `new` now.

    `ref` is its probability under the reference; unset, that of the old policy. `group` and `length` are the answers to
    the question and the tokens of each: they enter the `factors` alone. Raises `UserError` for what is no probability.
    """
    _refuse(mistakes_in(old=old, news=[new], advantage=advantage, ref=ref, group=group, length=length))
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
    """The objective at several πθ: a worked example. Raises `UserError` for what is no probability."""
    _refuse(mistakes_in(old=old, news=news, advantage=advantage, ref=ref))
    token = _Token.of(objective, old=old, advantage=advantage, ref=ref)
    return tuple(token.points(news))


def mistakes_in(
    *, old: float, news: Sequence[float], advantage: float, ref: float | None, group: int = 1, length: int = 1
) -> list[str]:
    """One sentence for each value that nothing can be said of."""
    probabilities = {"old": [old], "new": news, "ref": [] if ref is None else [ref]}
    found = [
        f"{name}: a probability is above 0 and at most 1, not {value:g}"
        for name, values in probabilities.items()
        for value in values
        if not 0 < value <= 1
    ]
    if not math.isfinite(advantage):
        found.append(f"advantage: expected a finite number, not {advantage:g}")
    counts = {"group": group, "length": length}
    return found + [f"{name}: expected 1 or more, not {value}" for name, value in counts.items() if value < 1]


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise UserError(mistakes)


# ------------------------------------------------------------------------------------------------- asking an objective


class _Gradients(NamedTuple):
    """dJ/dπ by term, each [N]."""

    policy: Tensor
    divergence: Tensor
    entropy: Tensor

    @property
    def total(self) -> Tensor:
        return self.policy + self.divergence + self.entropy


@dataclass(frozen=True, slots=True)
class _Token:
    """An objective and the batch of the one token it is asked about."""

    objective: Objective
    batch: Batch  # [1, 2]: a prompt of one token, and the token
    old: float
    advantage: float
    ref: float | None

    @classmethod
    def of(cls, objective: Objective, *, old: float, advantage: float, ref: float | None) -> "_Token":
        if isinstance(objective, ComposedObjective):
            objective = replace(objective, weight=total)
        seen = (ref or old) if objective.requires.reference else None
        return cls(objective, _answers(old=old, advantage=advantage, ref=seen), old, advantage, seen)

    def terms(self, probabilities: Tensor) -> Terms:
        """The terms of N such tokens together, each with another πθ and in a group of its own. [N] -> scalars"""
        rows = self.batch.rows(torch.zeros(len(probabilities), dtype=torch.int64))  # totals stay those of one token
        rows = self.objective.prepare(rows.with_(group=torch.arange(len(probabilities))))
        return self.objective(_scores(probabilities), rows)

    def gradients(self, probabilities: Tensor) -> _Gradients:
        """dJ/dπ at each of the probabilities [N]."""
        leaf = probabilities.clone().requires_grad_()
        terms = self.terms(leaf)
        return _Gradients(_by(terms.policy, leaf), 0.0 - _by(terms.divergence, leaf), _by(terms.entropy, leaf))

    def points(self, news: Sequence[float]) -> Iterator[Point]:
        """The objective at each πθ."""
        beside = torch.tensor([new + (self.old - new) * ASIDE for new in news], dtype=torch.float64)
        gradients = self.gradients(beside)
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

    def pull(self, probabilities: Tensor) -> Tensor:
        """Which way the policy term moves the probability: 1 up, -1 down, 0 not at all. [N]"""
        return self.gradients(probabilities).policy.sign()

    def course(self, probabilities: Tensor) -> Tensor:
        """Which way all terms together move it. [N]"""
        return self.gradients(probabilities).total.sign()

    def bound(self) -> float | None:
        """Where the policy term alone ceases to pull the way it does at π_old, be it above 1."""
        at_old = self.pull(_tensor(self.old)).item()
        if at_old == 0:
            return None
        return _first_change(self.pull, self.old, self.old * FARTHEST[1 if at_old > 0 else 0])

    def destination(self) -> float:
        """The first probability on the way up the objective, from π_old, at which it no longer rises."""
        at_old = self.course(_tensor(self.old)).item()
        if at_old == 0:
            return self.old
        up = at_old > 0
        found = _first_change(self.course, self.old, 1.0 if up else self.old * FARTHEST[0])
        return (1.0 if up else 0.0) if found is None else found

    def flat(self) -> Iterator[tuple[float, float]]:
        """Intervals on which the policy term has no gradient."""

        def still(probabilities: Tensor) -> Tensor:
            return self.pull(probabilities).abs()

        grid = self._grid()
        zero = (still(grid) == 0).tolist()
        for first, last in _runs(zero):
            low = 0.0 if first == 0 else _edge(still, grid[first], grid[first - 1])
            high = 1.0 if last == len(zero) - 1 else _edge(still, grid[last], grid[last + 1])
            if high - low > ASIDE:  # a single zero is a target, and no interval
                yield low, high

    def turns(self) -> Iterator[Turn]:
        """Probabilities at which the gradient of all terms together changes its sign."""
        grid = self._grid()
        signs = self.course(grid)
        moving = signs.nonzero().squeeze(1).tolist()
        for before, after in pairwise(moving):
            if signs[before] * signs[after] < 0:
                at = _edge(self.course, grid[before], grid[after])
                near, far = (self.gradients(_around(at, share)).total.abs() for share in (ASIDE, 1e-4))
                kink = bool((near > 1e-2 * far).any())  # a gradient that passes through 0 is small on both sides
                yield Turn(probability=at, kind="maximum" if signs[before] > 0 else "minimum", kink=kink)

    def _grid(self) -> Tensor:
        """Probabilities in (0, 1), dense at both ends."""
        low = self.old * FARTHEST[0]
        return torch.linspace(math.log(low / (1 - low)), 20.0, STEPS, dtype=torch.float64).sigmoid()


def _answers(*, old: float, advantage: float, ref: float | None, group: int = 1, length: int = 1) -> Batch:
    """[group, 1 + length]: answers to one question, no two alike. Every token of the first is the one in question."""
    answers = tuple(
        Rollout(
            token_ids=(2 + number,) * length,
            loss_mask=(True,) * length,
            logprobs=(math.log(old),) * length,
            text="",
            reward=advantage,
            finish_reason=FinishReason.stop,
            policy_version=0,
        )
        for number in range(group)
    )
    batch = Batch.from_groups([Group(prompt=Prompt(id="", text="", token_ids=(1,)), rollouts=answers)])
    first = torch.arange(group)[:, None] == 0  # [group, 1]

    def filled(value: float, elsewhere: float) -> Tensor:
        values = torch.where(first, _tensor(value), _tensor(elsewhere))
        return values.expand_as(batch.loss_mask).where(batch.loss_mask, 0.0)

    old_logprobs = filled(math.log(old), math.log(ELSEWHERE))
    return batch.with_(
        old_logprobs=old_logprobs,
        rollout_logprobs=old_logprobs,
        old_entropy=filled(_entropy(_tensor(old)).item(), 0.0),
        ref_logprobs=None if ref is None else filled(math.log(ref), math.log(ELSEWHERE)),
        advantages=filled(advantage, 0.0),
    )


def _scores(probabilities: Tensor) -> TokenScores:
    """N answers of one token: [N] -> [N, 2]."""

    def column(values: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(values), values], dim=1)

    return TokenScores(logprobs=column(probabilities.log()), entropy=column(_entropy(probabilities)))


def _entropy(probability: Tensor) -> Tensor:
    """Nats, of {the token, the rest}."""
    return torch.special.entr(probability) + torch.special.entr(1 - probability)


def _by(term: Tensor, leaf: Tensor) -> Tensor:
    """The gradient of a term, 0 where it does not depend on the leaf."""
    if not term.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(term, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient


def _factors(objective: Objective, token: _Token, group: int, length: int) -> Iterator[Factor]:
    """What sets how fast: the weight, split into its causes, the advantage, and the pull of the reference. Measured."""
    unit = _Token.of(objective, old=token.old, advantage=math.copysign(1.0, token.advantage), ref=token.ref)
    push = unit.gradients(_tensor(token.old)).policy.item() * token.old
    own = token.gradients(_tensor(token.old))
    if push:
        alone, grouped, whole = (
            _weighted(objective, unit, *size) / push for size in ((1, 1), (group, 1), (group, length))
        )
        if not math.isclose(alone, 1):
            yield Factor("one answer of one token", alone)
        if alone and grouped:
            yield Factor(f"a group of {group}", grouped / alone)
            yield Factor(f"an answer of {length}", whole / grouped)
        yield Factor("the size of Â", own.policy.item() * token.old / push)
    if token.ref is not None:
        yield Factor("the reference's pull", own.divergence.item() * token.old)


def _weighted(objective: Objective, unit: _Token, group: int, length: int) -> float:
    """dJ/dlog π of one token of a whole group, by the objective with its own weight, at πθ = π_old."""
    answers = _answers(old=unit.old, advantage=unit.advantage, ref=unit.ref, group=group, length=length)
    assert answers.old_logprobs is not None
    leaf = answers.old_logprobs.clone().requires_grad_()
    terms = objective(TokenScores(logprobs=leaf, entropy=answers.old_entropy), objective.prepare(answers))
    return _by(terms.policy, leaf)[0, 1].item()


# --------------------------------------------------------------------------------------------------- finding a change


def _first_change(signs: Signs, start: float, end: float) -> float | None:
    """The first place between `start` and `end` where the sign is no longer that at `start`; None if there is none."""
    way = torch.linspace(math.log(start), math.log(end), STEPS, dtype=torch.float64).exp()
    way[0] = start
    changed = _changed(signs(way)).nonzero()
    return _edge(signs, way[changed[0, 0] - 1], way[changed[0, 0]]) if len(changed) else None


def _edge(signs: Signs, start: Tensor, end: Tensor) -> float:
    """Where between `start` and `end`, which differ, the sign changes first, to the last digit."""
    for _ in range(6):
        way = torch.lerp(start, end, torch.linspace(0, 1, STEPS, dtype=torch.float64))
        changed = _changed(signs(way)).nonzero()
        if not len(changed):  # as close as rounding lets it be
            break
        start, end = way[changed[0, 0] - 1], way[changed[0, 0]]
    return ((start + end) / 2).item()


def _changed(signs: Tensor) -> Tensor:
    """Where a sign is another than the first; what is not a number, beyond a probability of 1, is no other."""
    return (signs != signs[0]) & ~signs.isnan()


def _around(probability: float, share: float) -> Tensor:
    """A little below and a little above, within (0, 1). [2]"""
    step = share * probability * (1 - probability)
    return torch.tensor([probability - step, probability + step], dtype=torch.float64)


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First and last index of every run of True."""
    bounds = [False, *flags, False]
    starts = [n for n in range(len(flags)) if bounds[n + 1] and not bounds[n]]
    ends = [n for n in range(len(flags)) if bounds[n + 1] and not bounds[n + 2]]
    return zip(starts, ends, strict=True)


def _tensor(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)
