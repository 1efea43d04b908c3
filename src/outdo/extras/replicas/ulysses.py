"""Ulysses sequence parallelism: several processes compute the same sequences, each of them a part of the tokens.

Everything in a transformer except attention computes each token alone, so that each of S processes runs the layers on
N / S tokens of the flat row. Attention needs all tokens of a sequence, and computes each head alone: before it, the
processes exchange tokens for heads, after which each has 1 / S of the heads of all N tokens; after it, they exchange
back. The backward pass makes the same exchanges in the opposite order. What a process keeps for the backward pass is
1 / S of what one process keeps for all tokens.

Source: Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PretrainedConfig

from outdo.algorithms.vocabulary_sums import VocabularySum
from outdo.models.fast.forward import FastForward, stateful_layers
from outdo.models.fast.layout import Layout, Rule, StatefulLayer
from outdo.models.forward import Forward
from outdo.models.probe import NARROW_TOLERANCE, TOLERANCE, small_batch
from outdo.types import Batch
from outdo.utils.errors import ModelError

OF_ALL_POSITIONS = ("dynamic", "longrope")
"""Kinds of rotary embeddings whose frequencies depend on the greatest position of the row, which one part may lack."""


class SequenceGroup:
    """Processes that compute the same flat rows, each of them its part of the tokens, as one of them sees them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)

    def __len__(self) -> int:
        return dist.get_world_size(self.group)

    def part(self, row: Tensor) -> Tensor:
        """Return this process's tokens of a row: [S n, ...] -> [n, ...]."""
        return row.chunk(len(self))[self.rank]

    def layout(self, layout: Layout) -> Layout:
        """Return the attention of `layout` over a whole row, which each process calls with its tokens of the row."""
        return HeadsForTokens(layout, self)

    def joined(self, values: Tensor, own: Tensor) -> Tensor:
        """Return the values [N] of all processes, of which `values` [n] are those at `own` [N] bool; differentiable.

        Each process has all values, and a loss of them. It adds the gradient of its own values only, so that a loss
        that all processes compute is counted once.
        """
        return cast("Tensor", _Joined.apply(values, own, self.group))


def in_parts(forward: Forward, sequence: SequenceGroup) -> Forward:
    """Return a forward pass in which the processes of a group compute the parts of each flat row.

    Raises `ModelError` if the model does not allow it.
    """
    if why := _not_in_parts(forward, len(sequence)):
        raise ModelError(f'attention = "ulysses": {type(forward.model).__name__} cannot be computed in parts: {why}')
    return forward.overridden(InParts, sequence=sequence, parts=len(sequence))


class InParts(FastForward):
    """A forward pass in which the processes of `sequence` compute the parts of each flat row.

    Each has the n hidden states of its part; the indices of `hidden` are those of the whole row.
    """

    sequence: SequenceGroup

    def flat(self, token_ids: Tensor, positions: Tensor, layout: Layout, routes: Tensor | None = None) -> Tensor:
        """Compute the hidden states [n, H] of this process's part of a flat row [S n]; see `FastForward.flat`."""
        part = self.sequence.part
        routes = None if routes is None else part(routes)
        return super().flat(part(token_ids), part(positions), self.sequence.layout(layout), routes)

    def scores_at(
        self,
        batch: Batch,
        rows: Tensor,
        columns: Tensor,
        *,
        sums: Sequence[VocabularySum] = (),
        chunk: int | None = None,
    ) -> tuple[Tensor, ...]:
        """See `Forward.scores_at`; every process returns the scores of all tokens."""
        if batch.inputs:
            named = ", ".join(batch.inputs[0])
            raise ModelError(f'attention = "ulysses" divides tokens alone, and the prompts bring more: {named}')
        hidden, source = self.hidden(batch)
        at = source[rows, columns] - self.sequence.rank * len(hidden)
        predicted = (at >= 0) & (at < len(hidden))  # the tokens that this process predicts
        scores = self.scores(
            hidden.index_select(0, at[predicted]), batch, rows[predicted], columns[predicted], sums=sums, chunk=chunk
        )
        return tuple(self.sequence.joined(values, predicted) for values in scores)


@torch.no_grad()
def check_parts(forward: Forward, sequence: SequenceGroup) -> None:
    """Raise `ModelError` if a group computes other log-probabilities of a few tokens than one process does.

    All processes of all groups have to call it.
    """
    batch = small_batch(forward.model.config.get_text_config().vocab_size).to(forward.device)
    places = batch.loss_mask.nonzero(as_tuple=True)
    whole, parts = (
        way.with_weights(partial(way.scores_at, batch, *places))[0] for way in (forward, in_parts(forward, sequence))
    )
    gap = float((parts - whole).abs().max())
    if not gap < (NARROW_TOLERANCE if forward.autocast else forward.tolerance(TOLERANCE)):
        raise ModelError(
            f'attention = "ulysses": {len(sequence)} replicas compute other log-probabilities of a sequence than one '
            f"does, by {gap:.2g} nats"
        )


def _not_in_parts(forward: Forward, count: int) -> str:
    """Return why a model cannot be computed in `count` parts; empty if it can."""
    config = forward.model.config.get_text_config()
    heads = config.num_attention_heads
    if forward.layout != "shared":
        return f"its attention cannot be replaced ({forward.reason})"
    if heads % count:
        return f"its {heads} attention heads cannot be divided by {count} replicas"
    if layers := stateful_layers(forward.model):
        return f"its {type(layers[0].module).__name__} reads tokens that other replicas have"
    if rotation := _rotation_of_all_positions(config):
        return f"its rotary embedding ({rotation}) depends on the longest sequence of a batch"
    return ""


def _rotation_of_all_positions(config: PretrainedConfig) -> str:
    """Return the kind of rotary embedding whose frequencies depend on the greatest position; empty if there is none."""
    parameters: Any = getattr(config, "rope_parameters", None) or {}
    of_kinds_of_layers = [of_kind for of_kind in parameters.values() if isinstance(of_kind, Mapping)]
    kinds = [table.get("rope_type") for table in (parameters, *of_kinds_of_layers)]
    return next((kind for kind in kinds if kind in OF_ALL_POSITIONS), "")


class HeadsForTokens:
    """A layout whose attention is computed for some heads of all tokens, and called with all heads of some tokens."""

    def __init__(self, layout: Layout, sequence: SequenceGroup) -> None:
        self.layout = layout
        self.sequence = sequence

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`, with n tokens of this process in the place of N.

        Heads of keys and values are repeated where S does not divide their number.
        """
        count, kv_heads = len(self.sequence), key.shape[1]
        repeats = count // math.gcd(count, kv_heads)
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        query, key, value = map(self._some_heads, (query, key, value))
        if rule.sinks is not None:
            rule = rule._replace(sinks=rule.sinks.chunk(count)[self.sequence.rank])
        return self._all_heads(self.layout.attend(query, key, value, rule))

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """See `Layout.scan`; `in_parts` refuses the models that would call it."""
        raise NotImplementedError

    def _some_heads(self, x: Tensor) -> Tensor:
        """Exchange tokens for heads: [1, heads, n, d] -> [1, heads / S, S n, d]."""
        parts = x[0].unflatten(0, (len(self.sequence), -1))  # [S, heads / S, n, d]
        return self._exchange(parts).transpose(0, 1).flatten(1, 2)[None]

    def _all_heads(self, x: Tensor) -> Tensor:
        """Exchange heads for tokens: [1, S n, heads / S, e] -> [1, n, heads, e]."""
        parts = x[0].unflatten(0, (len(self.sequence), -1))  # [S, n, heads / S, e]
        return self._exchange(parts).transpose(0, 1).flatten(1, 2)[None]

    def _exchange(self, parts: Tensor) -> Tensor:
        return cast("Tensor", _Exchange.apply(parts, self.sequence.group))


class _Exchange(torch.autograd.Function):
    """Send part i of [S, ...] to process i, and stack what all processes have sent; the gradient goes the same way."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradient, ctx.group), None


def _exchanged(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(parts, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, parts.contiguous(), group=group)
    return received


class _Joined(torch.autograd.Function):
    """Put the values [n] of each process at its places of [N]; the gradient of each process is that of its own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(own)
        joined = values.new_zeros(len(own)).masked_scatter_(own, values)
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (own,) = ctx.saved_tensors
        return gradient[own], None, None
