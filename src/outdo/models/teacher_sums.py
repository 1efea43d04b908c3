"""The divergence from the teachers of each row, as a sum over the vocabulary of the policy's logits.

The teachers have read the batch before: what is kept of a token is the hidden state that predicts it, from which the
teacher's head computes its logits again, of some tokens at a time. So neither [B, T, V] nor the teacher's layers are in
memory during the update.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from outdo.algorithms.vocabulary_divergences import VocabularyDivergence
from outdo.algorithms.vocabulary_sums import SumWithData, token_logprobs
from outdo.types import Batch

TeacherHead = Callable[[Tensor], Tensor]
"""What computes logits [N, V] from the hidden states [N, H] of a teacher, without a gradient."""

NO_HEADS: Mapping[str, TeacherHead] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TeacherDivergence(SumWithData):
    """D_T of each token: the mean of the divergences from the row's teachers, with their weights; 0 without one."""

    divergence: VocabularyDivergence
    heads: Mapping[str, TeacherHead]

    def data(self, batch: Batch, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        """Return for each teacher its weight [N] and hidden states [N, H], of the tokens at `rows` and `columns`."""
        tensors: list[Tensor] = []
        for name in self.heads:
            tensors += [batch.teacher_weights[name][rows], batch.teacher_states[name][rows, columns]]
        return tuple(tensors)

    def __call__(self, logits: Tensor, temperature: Tensor, *data: Tensor) -> Tensor:
        """Compute D_T [N] from logits [N, V] and temperature [N]; see `data`."""
        total = logits.new_zeros(len(logits), dtype=torch.promote_types(logits.dtype, torch.float32))
        for head, weights, states in zip(self.heads.values(), data[::2], data[1::2], strict=True):
            taught = weights.nonzero().squeeze(1)
            if len(taught) == 0:
                continue
            at: Tensor | slice = slice(None) if len(taught) == len(weights) else taught  # a slice copies no logits
            divergence = self.divergence(logits[at], head(states[at]), temperature[at])
            total = total.index_add(0, taught, weights[at].to(divergence) * divergence)
        return total


@dataclass(frozen=True, slots=True)
class TeacherPull(SumWithData):
    """How a divergence from the teachers pulls at each token: -∂D_T / ∂log p_y, without a gradient.

    log p_y changes while all other tokens keep their proportions, as it does where the logit z_y alone changes:
    ∂D_T / ∂log p_y = τ ∂D_T / ∂z_y / (1 - p_y). So the pull compares with the push of a loss of log p_y.
    """

    divergence: TeacherDivergence

    def data(self, batch: Batch, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        """Return the token ids [N], and the data of the divergence."""
        return batch.token_ids[rows, columns], *self.divergence.data(batch, rows, columns)

    def __call__(self, logits: Tensor, temperature: Tensor, *data: Tensor) -> Tensor:
        """Compute the pull [N] from logits [N, V] and temperature [N]; see `data`."""
        token_ids, *of_teachers = data
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            total = self.divergence(leaf, temperature, *of_teachers).sum()
        if not total.requires_grad:  # no teacher teaches any of these tokens
            return torch.zeros_like(total).expand(len(logits))
        (by_logits,) = torch.autograd.grad(total, leaf)
        by_logit = by_logits.gather(1, token_ids[:, None])[:, 0] * temperature
        rest = -token_logprobs(logits.detach(), token_ids, temperature).expm1()  # 1 - p_y
        return -(by_logit / rest.where(rest > 0, 1.0)).where(rest > 0, 0.0)


def sums_of_divergences(
    divergences: Mapping[str, VocabularyDivergence], heads: Mapping[str, TeacherHead]
) -> dict[str, SumWithData]:
    """Return the sums over the vocabulary that an objective requires by these names, and the pull of each."""
    sums = {name: TeacherDivergence(divergence, heads) for name, divergence in divergences.items()}
    return {**sums, **{pull_of(name): TeacherPull(divergence) for name, divergence in sums.items()}}


def pull_of(name: str) -> str:
    """Return the name of the pull of a divergence."""
    return f"{name}/pull"
