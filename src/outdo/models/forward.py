"""The forward pass of a causal language model: from tokens to hidden states, and from these to log-probabilities.

`Forward` is plain: the rows of a batch are padded to one length, and the model runs as its authors wrote it. So it
computes any model that `transformers` loads. `outdo.models.fast` overrides its methods; what that computes of a few
tokens is compared with the plain forward pass when a model is loaded: see `outdo.models.choose_forward`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cache
from inspect import signature
from typing import Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.algorithms.vocabulary_sums import SumWithData, VocabularySum
from outdo.models.conversations import conversations
from outdo.models.logprobs import chunked_scores, predecessors
from outdo.models.onednn import LINEAR, ONEDNN, Gradients
from outdo.models.rounding import tolerance
from outdo.models.sharding import Sharding, sharding_of
from outdo.types import Batch
from outdo.types.inputs import Inputs, joined_inputs
from outdo.utils.errors import ModelError

Overriding = TypeVar("Overriding", bound="Forward")


class Forward:
    """A model, and how its log-probabilities are computed."""

    layout: Literal["padded", "shared"] = "padded"
    """How the rows of a batch are laid out; "shared": in one row, in which each prompt is once for all its answers."""

    gradients: Gradients = ONEDNN
    """The libraries of the backward pass on a CPU."""

    fused: tuple[str, ...] = ()
    """The kinds of modules that outdo computes in place of the model's own."""

    routers: Any = None
    """The `outdo.models.fast.routing.Routers` of a mixture model: a batch that has `routes` replays them."""

    unreachable_routers = ""
    """Why a mixture model has no `routers`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        plain_head: bool = False,
        autocast: bool = False,
        rounding: float = 0.0,
        reason: str = "",
    ) -> None:
        self.model = model
        self.plain_head = plain_head  # whether logits are the output embedding of the hidden state, nothing more
        self.autocast = autocast  # bfloat16 products; the weights stay float32
        self.rounding = rounding  # nats by which float32 moves its log-probabilities: see `models.rounding`
        self.reason = reason  # why the layout is not shared
        self.device = sharding_of(model).device

    def with_model(self, model: PreTrainedModel, *, plain_head: bool | None = None) -> Self:
        """Return the forward pass of another model of the same kind, computed as this one is."""
        other = copy(self)
        other.model, other.device = model, sharding_of(model).device
        if model is not self.model:
            other.routers = None
        other.plain_head = self.plain_head if plain_head is None else plain_head
        return other

    def overridden(self, by: type[Overriding], **attributes: Any) -> Overriding:
        """Return this forward pass with the methods of `by` before its own, and the attributes that these need."""
        other = copy(self)
        other.__class__ = _before(by, type(self))  # type: ignore[assignment]
        vars(other).update(attributes)
        return cast("Overriding", other)

    def in_float32(self) -> Self:
        """Return the forward pass of this model with float32 products, as its code runs without compilation."""
        other = copy(self)
        other.autocast = False
        return other

    def padded(self) -> Self:
        """Return the forward pass of this model with padded rows."""
        return self

    @property
    def description(self) -> str:
        """How rows are laid out and attention is computed, for the user."""
        return self.layout

    @property
    def trained(self) -> list[nn.Parameter]:
        """The weights that have a gradient."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @property
    def sharding(self) -> Sharding:
        """Where the weights are."""
        return sharding_of(self.model)

    @property
    def precision_name(self) -> Literal["bfloat16", "float32"]:
        """The precision of matrix products, to run another model at the same precision."""
        return "bfloat16" if self.autocast else "float32"

    def tolerance(self, smallest: float) -> float:
        """Return by how many nats two right computations of this model in float32 may differ; at least `smallest`."""
        return tolerance(smallest, self.rounding)

    def with_weights(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what `compute` returns, which runs this model, also if its weights are divided among replicas."""
        return self.sharding(compute)

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context for many runs of the model; see `Sharding.gathered`."""
        return self.sharding.gathered()

    def prepared(self, *, packed: bool = False) -> AbstractContextManager[None]:
        """Return a context in which the model is computed often; with `packed` its weights do not change meanwhile."""
        return nullcontext()

    def precision(self) -> torch.autocast:
        """Return a context in which products are computed in bfloat16, if this model's are."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute hidden states [N, H], and for each token the index of the hidden state that predicts it.

        The indices are [B, T + 1]: the column after an answer's last token has the state after the whole answer.
        """
        if batch.previous is not None:
            rows, places = conversations(batch)
            hidden, source = self._of_rows(rows)
            return hidden, source.flatten()[places]
        return self._of_rows(batch)

    def _of_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `hidden`, of rows that are one conversation each."""
        rows, width = batch.token_ids.shape
        # The model finds the positions itself: some count from another number than 0 (RoBERTa).
        self.check_inputs(batch.inputs)
        inputs = joined_inputs(batch.inputs)
        hidden = self._run(input_ids=batch.token_ids, attention_mask=batch.attention_mask.long(), **inputs)
        start = torch.arange(rows, device=self.device)[:, None] * width
        return hidden.flatten(0, 1), start + predecessors(width + 1, self.device)  # [B * T, H], [B, T + 1]

    def check_inputs(self, rows: Sequence[Inputs]) -> None:
        """Raise `ModelError` for an input of some rows that the model does not name.

        It might take such an input, and never look at it.
        """
        computed = [self.model.base_model] * self.plain_head + [self.model]
        for name in dict.fromkeys(name for inputs in rows for name in inputs):
            if ignoring := [type(part) for part in computed if name not in signature(part.forward).parameters]:
                raise ModelError(
                    f"the prompts bring the input {name}, and the forward method of {ignoring[0].__name__} has no "
                    "parameter of this name"
                )

    def _run(self, **inputs: Any) -> Tensor:
        """Run the model: [R, L] -> hidden states [R, L, H]; if the head is not plain, logits [R, L, V]."""
        with self.precision():
            if self.plain_head:
                return self.model.base_model(**inputs, use_cache=False).last_hidden_state
            return self.model(**inputs, use_cache=False).logits

    def scores_at(
        self,
        batch: Batch,
        rows: Tensor,
        columns: Tensor,
        *,
        sums: Sequence[VocabularySum] = (),
        chunk: int | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute log-probabilities [N], then each sum [N], of the tokens of a batch at `rows` and `columns` [N]."""
        hidden, source = self.hidden(batch)
        # A prompt's last state is taken once for each of its answers: the backward pass of `hidden[at]` adds these
        # in an order that depends on the threads.
        at = source[rows, columns]
        return self.scores(hidden.index_select(0, at), batch, rows, columns, sums=sums, chunk=chunk)

    def scores(
        self,
        hidden: Tensor,
        batch: Batch,
        rows: Tensor,
        columns: Tensor,
        *,
        sums: Sequence[VocabularySum],
        chunk: int | None,
    ) -> tuple[Tensor, ...]:
        """Compute the same from the hidden states [N, H] that predict the tokens: see `chunked_scores`."""
        token_ids, temperature = batch.token_ids[rows, columns], batch.temperature[rows]
        data = [compute.data(batch, rows, columns) if isinstance(compute, SumWithData) else () for compute in sums]
        with self.precision():
            output: nn.Module = self.model.get_output_embeddings()  # type: ignore[assignment]
            head = output if self.plain_head and type(output) in LINEAR else self.head
            return chunked_scores(head, hidden, token_ids, temperature, sums=sums, data=data, chunk=chunk)

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits [N, V] of hidden states [N, H]; if the head is not plain, `hidden` holds logits already."""
        if not self.plain_head:
            return hidden
        with self.precision():
            head: nn.Module = self.model.get_output_embeddings()  # type: ignore[assignment]
            return head(hidden)


@cache
def _before(by: type[Forward], kind: type[Forward]) -> type[Forward]:
    """Return a class with the methods of `by`, then those of `kind`."""
    return type(by.__name__, (by, kind), {})
