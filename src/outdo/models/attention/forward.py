"""The forward pass of a causal language model: from tokens to hidden states, and from these to logits.

It runs in one of two ways. `shared` replaces the attention of the unmodified `transformers` model by outdo's own,
through the interface that `transformers` has for this: each prompt is computed once per group, and nothing is padded.
`padded` runs the model as its authors did. `choice.py` finds out which of them a model allows.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import cache, partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import AttentionInterface

from outdo.models import onednn
from outdo.models.attention.conversations import conversations
from outdo.models.attention.packed import Layout, Packed, Rule, pack
from outdo.models.lean_modules import Kind, lean_modules, readers
from outdo.models.logprobs import Entropy, chunked_scores, predecessors
from outdo.models.rounding import tolerance
from outdo.models.sharding import Sharding, sharding_of
from outdo.models.wrapped_forwards import wrapped_forwards
from outdo.types import Batch
from outdo.types.rows import UNKNOWN_EXPERT

Way = Literal["shared", "padded"]
NAME = "outdo"


class SequenceParallel(Protocol):
    """Processes that compute the same flat rows, each of them its part of the tokens: `ulysses.SequenceGroup`."""

    rank: int

    def __len__(self) -> int: ...

    def part(self, row: Tensor) -> Tensor:
        """Return this process's tokens of a row: [S n, ...] -> [n, ...]."""
        ...

    def layout(self, layout: Layout) -> Layout:
        """Return the attention of `layout` over a whole row, which each process calls with its tokens of the row."""
        ...

    def joined(self, values: Tensor, own: Tensor) -> Tensor:
        """Return the values [N] of all processes, of which `values` [n] are those at `own` [N] bool; differentiable."""
        ...


class RecordedRoutes(Protocol):
    """The experts that the routers of a model have chosen."""

    def last(self) -> Tensor:
        """Return the choices for the N tokens of the last forward pass, [N, R, k]."""
        ...


class ExpertRouters(Protocol):
    """The R routers of a mixture-of-experts model: `outdo.models.routing.Routers`."""

    def recorded(self, model: nn.Module) -> AbstractContextManager[RecordedRoutes]:
        """Return a context in which the choices of each forward pass are recorded."""
        ...

    def replayed(self, model: nn.Module, routes: Tensor) -> AbstractContextManager[None]:
        """Return a context in which the choices for N tokens are `routes` [N, R, k]."""
        ...


class Forward:
    """A model, and the way to run it."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        way: Way,
        plain_head: bool,
        autocast: bool,
        reason: str = "",
        compile: bool = False,
        gradient_checkpointing: bool = False,
        rounding: float = 0.0,
    ) -> None:
        self.model = model
        self.way: Way = way
        self.plain_head = plain_head  # whether logits are the output embedding of the hidden state, nothing more
        self.autocast = autocast  # bfloat16 products; the weights stay float32
        self.reason = reason  # why it is not the shared way
        self.kernel = "sdpa"  # of attention in the shared way, except in sampling
        self.layout_of: Callable[[Packed], Layout] | None = None  # of this kernel; None: the packed batch itself
        self.compile = compile  # of the layers, in training; not in sampling and measuring
        # Keep only the input of each layer, and compute the layer again in the backward pass.
        self.gradient_checkpointing = gradient_checkpointing
        self.rounding = rounding  # nats by which float32 moves its log-probabilities: see `models.rounding`
        self.device = sharding_of(model).device
        self.routers: ExpertRouters | None = None  # of a mixture model: a batch that has `routes` replays them
        self.unreachable_routers = ""  # why a mixture model has no `routers`
        self.sequence: SequenceParallel | None = None  # the processes that compute a flat row together with this one
        self.lean: tuple[Kind, ...] = ()  # the modules that are computed with fewer operators: see `lean_modules`
        self.rules: tuple[Rule, ...] = ()  # with which these call attention
        self.gradients = onednn.ONEDNN  # the libraries of the backward pass on a CPU
        self._prepared = False

    def with_model(self, model: PreTrainedModel, *, plain_head: bool | None = None) -> "Forward":
        """Return the forward pass of another model of the same kind, run in the same way."""
        other = copy(self)
        other.model, other.device = model, sharding_of(model).device
        if model is not self.model:
            other.routers = None
        other.plain_head = self.plain_head if plain_head is None else plain_head
        return other

    @property
    def trained(self) -> list[nn.Parameter]:
        """The weights that have a gradient."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @property
    def sharding(self) -> Sharding:
        """Where the weights are."""
        return sharding_of(self.model)

    def tolerance(self, smallest: float) -> float:
        """Return by how many nats two right computations of this model in float32 may differ; at least `smallest`."""
        return tolerance(smallest, self.rounding)

    def in_float32(self) -> "Forward":
        """Return the forward pass of this model with float32 products, as its code runs without compilation."""
        other = copy(self)
        other.autocast = other.compile = False
        return other

    def with_way(self, way: Way) -> "Forward":
        """Return the forward pass of this model in another way."""
        other = copy(self)
        other.way = way
        return other

    def with_weights(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what `compute` returns, which runs this model, also if its weights are divided among replicas."""
        return self.sharding(compute)

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context for many runs of the model; see `Sharding.gathered`."""
        return self.sharding.gathered()

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute hidden states [N, H], and for each token the index of the hidden state that predicts it.

        The indices are [B, T + 1]: the column after an answer's last token has the state after the whole answer. If
        several processes compute a row together, each has the n hidden states of its part, and the indices of the row.
        """
        if batch.previous is not None:
            rows, places = conversations(batch)
            hidden, source = self._of_rows(rows)
            return hidden, source.flatten()[places]
        return self._of_rows(batch)

    def _of_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `hidden`, of rows that are one conversation each."""
        if self.way == "shared":
            return self._packed(batch)
        rows, width = batch.token_ids.shape
        # The model finds the positions itself: some count from another number than 0 (RoBERTa).
        routes = None if batch.routes is None else batch.routes.flatten(0, 1)
        hidden = self._run(routes, input_ids=batch.token_ids, attention_mask=batch.attention_mask.long())
        start = torch.arange(rows, device=self.device)[:, None] * width
        return hidden.flatten(0, 1), start + predecessors(width + 1, self.device)  # [B * T, H], [B, T + 1]

    def _packed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        packed, sequence = pack(batch), self.sequence
        tokens, parts = len(packed.token_ids), 1 if sequence is None else len(sequence)
        of_part = -(-tokens // parts)
        padding = parts * (onednn.pad_to_bucket(of_part) if self.device.type == "cpu" else of_part) - tokens
        token_ids, positions = (pad(each, (0, padding)) for each in (packed.token_ids, packed.positions))
        routes = None
        if batch.routes is not None:
            routes = pad(batch.routes[packed.rows, packed.positions], (0, 0, 0, 0, 0, padding), value=UNKNOWN_EXPERT)
        layout: Layout = packed if self.layout_of is None else self.layout_of(packed)
        if sequence is not None:
            token_ids, positions, layout = sequence.part(token_ids), sequence.part(positions), sequence.layout(layout)
            routes = None if routes is None else sequence.part(routes)
        return self.flat(token_ids, positions, layout, routes), packed.source

    def flat(self, token_ids: Tensor, positions: Tensor, layout: Layout, routes: Tensor | None = None) -> Tensor:
        """Compute the hidden states [N, H] of a flat row of tokens [N] at `positions` [N], in the shared way.

        `routes` [N, R, k] are the experts that the routers of a mixture model are to choose.
        """
        return self._run(routes, input_ids=token_ids[None], position_ids=positions[None], layout=layout)[0]

    def scores_at(
        self, batch: Batch, rows: Tensor, columns: Tensor, *, entropy: Entropy, chunk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities [N] and entropies [N] of the tokens of a batch at `rows` and `columns` [N].

        See `chunked_scores`.
        """
        hidden, source = self.hidden(batch)
        at, token_ids, temperature = source[rows, columns], batch.token_ids[rows, columns], batch.temperature[rows]
        if self.sequence is None:
            # A prompt's last state is taken once for each of its answers: the backward pass of `hidden[at]` adds these
            # in an order that depends on the threads.
            return self.scores(hidden.index_select(0, at), token_ids, temperature, entropy=entropy, chunk=chunk)
        at = at - self.sequence.rank * len(hidden)
        own = (at >= 0) & (at < len(hidden))  # the tokens that this process predicts
        logprobs, entropies = self.scores(
            hidden.index_select(0, at[own]), token_ids[own], temperature[own], entropy=entropy, chunk=chunk
        )
        return self.sequence.joined(logprobs, own), self.sequence.joined(entropies, own)

    def scores(
        self, hidden: Tensor, token_ids: Tensor, temperature: Tensor, *, entropy: Entropy, chunk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities [N] and entropies [N] of the tokens that `hidden` [N, H] predicts.

        See `chunked_scores`.
        """
        with self.precision(), onednn.gradients_by(self.gradients):
            head: nn.Module = self.model.get_output_embeddings()  # type: ignore[assignment]
            linear = self.plain_head and type(head) in onednn.LINEAR
            return chunked_scores(
                head if linear else self.head, hidden, token_ids, temperature, entropy=entropy, chunk=chunk
            )

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits [N, V] of hidden states [N, H]; if the head is not plain, `hidden` holds logits already."""
        if not self.plain_head:
            return hidden
        with self.precision():
            head: nn.Module = self.model.get_output_embeddings()  # type: ignore[assignment]
            return head(hidden)

    @contextmanager
    def prepared(self, *, packed: bool = False) -> Iterator[None]:
        """Replace the model's attention and linear layers by outdo's during a `with` block.

        One block around many calls is faster than one for each. Outside of it the model is as its authors made it.
        With `packed` the weights are brought once into the form in which products read them, and must not change in the
        block: see `onednn.patched_linears`; autocast keeps its bfloat16 copies, for which divided models have no room.
        """
        if self._prepared:
            yield
            return
        compiled = self.compile and torch.is_grad_enabled()
        self._prepared = True
        try:
            with ExitStack() as replaced:
                replaced.enter_context(onednn.gradients_by(self.gradients))
                if packed and not self.sharding.is_divided:
                    replaced.enter_context(self.precision())  # its copies last as long as the outermost block
                if self.way == "shared":
                    replaced.enter_context(_attention_replaced(self.model))
                    if not compiled:
                        replaced.enter_context(lean_modules(self.model, self.lean, self.rules))
                if not (self.autocast or compiled):
                    same = readers(self.model, self.lean) if packed else ()
                    replaced.enter_context(onednn.patched_linears(self.model, packed=packed, readers=same))
                yield
        finally:
            self._prepared = False

    def _run(self, routes: Tensor | None, **inputs: Any) -> Tensor:
        with self.prepared(), self._replayed(routes), self.precision(), self._layers_wrapped(routes):
            if self.plain_head:
                return self.model.base_model(**inputs, use_cache=False).last_hidden_state  # [R, L, H]
            return self.model(**inputs, use_cache=False).logits  # [R, L, V]

    def _replayed(self, routes: Tensor | None) -> AbstractContextManager[None]:
        if routes is None or self.routers is None:
            return nullcontext()
        return self.routers.replayed(self.model, routes)

    @contextmanager
    def _computed_again(self, routes: Tensor | None) -> Iterator[None]:
        with self.prepared(), self._replayed(routes):
            yield

    def _layers_wrapped(self, routes: Tensor | None) -> AbstractContextManager[None]:
        if not ((self.compile or self.gradient_checkpointing) and torch.is_grad_enabled()):
            return nullcontext()
        recompute = {
            "use_reentrant": False,
            "preserve_rng_state": False,
            # The backward pass runs outside of this block.
            "context_fn": lambda: (nullcontext(), self._computed_again(routes)),
        }

        def wrap(layer: nn.Module) -> Callable[..., Any]:
            forward = partial(_compiled(type(layer).forward), layer) if self.compile else layer.forward
            return partial(checkpoint, forward, **recompute) if self.gradient_checkpointing else forward

        return wrapped_forwards(layers_of(self.model), wrap)

    @property
    def precision_name(self) -> Literal["bfloat16", "float32"]:
        """The precision of matrix products, to run another model at the same precision."""
        return "bfloat16" if self.autocast else "float32"

    def precision(self) -> torch.autocast:
        """Return a context in which products are computed in bfloat16, if this model's are."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)


@torch.compiler.disable  # each batch has other parts, and would be compiled again
def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention; `transformers` calls this instead of its own. `options` are for other kernels."""
    if options.get("s_aux") is not None:
        raise ValueError("it has attention sinks")
    return layout.attend(query, key, value, Rule(scaling, sliding_window, softcap)), None


AttentionInterface.register(NAME, _attend)


@contextmanager
def _attention_replaced(model: PreTrainedModel) -> Iterator[None]:
    own = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = own


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers, as `transformers` marks them for gradient checkpointing."""
    return [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(forward, dynamic=True)  # once for all layers of a class, at any length
