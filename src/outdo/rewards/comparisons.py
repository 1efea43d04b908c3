"""Comparisons, from which a reward model learns: several answers to one prompt, each with a value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Text = str | Sequence[Mapping[str, Any]]  # a prompt, or chat messages
Loss = Literal["pairs", "regression"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Answers to one prompt, and the value of each. A preference has two answers with the values 1 and 0."""

    prompt: Text
    completions: tuple[str, ...]
    values: tuple[float, ...]  # the loss "pairs" depends only on their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How many pairs of answers a model ranks in the order of their values. Rankings can be added."""

    pairs: int = 0
    right: int = 0

    def __add__(self, other: "Ranking") -> "Ranking":
        return Ranking(pairs=self.pairs + other.pairs, right=self.right + other.right)

    @property
    def share(self) -> float:
        """The share of pairs in the right order; 0.5 is chance. NaN if there are none."""
        return self.right / self.pairs if self.pairs else float("nan")


def comparisons_of(rated: Iterable[tuple[Text, str, float]]) -> list[Comparison]:
    """Group `(prompt, completion, value)` by prompt, both in the order first seen."""
    by_prompt: dict[str, list[tuple[Text, str, float]]] = {}
    for comparison in rated:
        by_prompt.setdefault(repr(comparison[0]), []).append(comparison)
    return [
        Comparison(prompt=rows[0][0], completions=tuple(row[1] for row in rows), values=tuple(row[2] for row in rows))
        for rows in by_prompt.values()
    ]


def pairs_of(values: Sequence[float]) -> list[tuple[int, int]]:
    """Return every `(better, worse)` of different value, as indices of `values`."""
    indices = range(len(values))
    return [(better, worse) for better in indices for worse in indices if values[better] > values[worse]]


def ranking_of(scores: Sequence[float], values: Sequence[float]) -> Ranking:
    """Count the pairs that `scores` rank in the order of `values`. A pair with equal scores is not right."""
    pairs = pairs_of(values)
    return Ranking(pairs=len(pairs), right=sum(scores[better] > scores[worse] for better, worse in pairs))


def comparison_loss(scores: Tensor, values: Sequence[float], loss: Loss = "pairs") -> Tensor:
    """Compute the loss of one comparison, a scalar, from scores s [n] and values v.

    "pairs":      −(1/|P|) Σ_{(b, w) ∈ P} log σ(s_b − s_w),  P: the pairs with v_b > v_w
                  (Bradley & Terry 1952; Ouyang et al. 2022, equation 1). Every comparison has the same weight, however
                  many pairs it has; the loss of one without pairs is 0.
    "regression": (1/n) Σ_i (s_i − v_i)²
    """
    if loss == "regression":
        return (scores - scores.new_tensor(values)).square().mean()
    pairs = pairs_of(values)
    if not pairs:
        return scores.sum() * 0.0
    better, worse = torch.tensor(pairs, device=scores.device).unbind(1)  # [|P|] each
    return -logsigmoid(scores[better] - scores[worse]).mean()


def total_loss(
    scores: Tensor, counts: Mapping[int, int], comparisons: Sequence[Comparison], loss: Loss
) -> tuple[Tensor, Ranking]:
    """Compute the sum of the losses of some comparisons, and their ranking.

    `counts` has the number of scores of each of them, by its index, in the order of `scores`.
    """
    losses, ranking = [], Ranking()
    for index, of_prompt in zip(counts, scores.split([*counts.values()]), strict=True):
        losses.append(comparison_loss(of_prompt, comparisons[index].values, loss))
        ranking += ranking_of(of_prompt.tolist(), comparisons[index].values)
    return torch.stack(losses).sum(), ranking


def is_useful(comparison: Comparison, loss: Loss) -> bool:
    """Return whether the loss has a gradient on this comparison."""
    return loss == "regression" or len(set(comparison.values)) > 1
