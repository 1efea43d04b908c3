"""A forward pass with fewer and faster operators than the plain one.

It runs in one of two layouts. `shared` replaces the attention of the unmodified `transformers` model by outdo's own,
through the interface that `transformers` has for this, and its layers with a state (`layout.py`): each prompt is
computed once per group, and nothing is padded. `padded` is that of the plain forward pass. `choice.py` finds out which
of them a model allows.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import cache, partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from outdo.models import onednn
from outdo.models.fast.fused_modules import Kind, fused_modules, readers
from outdo.models.fast.gated_delta_net import GatedDeltaNet
from outdo.models.fast.kimi_delta_attention import KimiDeltaAttention
from outdo.models.fast.layout import Layout, Rule, StatefulLayer, UnknownAttentionError
from outdo.models.fast.mamba2 import Mamba2
from outdo.models.fast.packed import Packed, pack
from outdo.models.fast.routing import Routers
from outdo.models.fast.short_convolution import ShortConvolution
from outdo.models.fast.wrapped_forwards import wrapped_forwards
from outdo.models.forward import Forward
from outdo.models.layers import layers_of
from outdo.types import Batch
from outdo.types.rows import UNKNOWN_EXPERT

NAME = "outdo"

STATEFUL: tuple[type[StatefulLayer], ...] = (ShortConvolution, GatedDeltaNet, KimiDeltaAttention, Mamba2)
"""The kinds of layers with a state that the shared layout computes."""


class FastForward(Forward):
    """A model, and the way to run it: the settings of `plain`, in a `layout`.

    Args:
        compile: compile the layers, in training; not in sampling and measuring.
        gradient_checkpointing: keep only the input of each layer, and compute it again in the backward pass.
        gradients: the libraries of the backward pass on a CPU.
    """

    parts = 1
    """Processes that compute a flat row together."""

    def __init__(
        self,
        plain: Forward,
        layout: Literal["padded", "shared"],
        *,
        reason: str = "",
        compile: bool = False,
        gradient_checkpointing: bool = False,
        gradients: onednn.Gradients = onednn.ONEDNN,
    ) -> None:
        super().__init__(
            plain.model, plain_head=plain.plain_head, autocast=plain.autocast, rounding=plain.rounding, reason=reason
        )
        self.layout = layout
        self.compile = compile
        self.gradient_checkpointing = gradient_checkpointing
        self.gradients = gradients
        self.kernel = "sdpa"  # of attention in the shared layout, except in sampling
        self.layout_of: Callable[[Packed], Layout] | None = None  # of this kernel; None: the packed batch itself
        self.routers: Routers | None = None
        self.fused: tuple[Kind, ...] = ()
        self.rules: tuple[Rule, ...] = ()  # with which the fused modules call attention
        self._prepared = False

    def in_float32(self) -> Self:
        """See `Forward.in_float32`."""
        other = super().in_float32()
        other.compile = False
        return other

    def padded(self) -> Self:
        """See `Forward.padded`."""
        other = copy(self)
        other.layout = "padded"
        return other

    @property
    def description(self) -> str:
        """See `Forward.description`."""
        return self.layout if self.kernel == "sdpa" else f"{self.layout}, by {self.kernel}"

    def _of_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Forward._of_rows`."""
        if self.layout == "shared" and batch.inputs:
            return self.padded()._of_rows(batch)  # where inputs differ, equal tokens are not the same prompt
        if self.layout == "shared":
            return self._packed(batch)
        with self._replaced(None if batch.routes is None else batch.routes.flatten(0, 1)):
            return super()._of_rows(batch)

    def _packed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        packed = pack(batch)
        tokens = len(packed.token_ids)
        of_part = -(-tokens // self.parts)
        padding = self.parts * (onednn.pad_to_bucket(of_part) if self.device.type == "cpu" else of_part) - tokens
        # Behind an embedding of zeros, as that of a padding token is, the gradient of a norm is NaN (Gemma 3n).
        filler = int(getattr(self.model.get_input_embeddings(), "padding_idx", None) == 0)
        token_ids = pad(packed.token_ids, (0, padding), value=filler)
        positions = pad(packed.positions, (0, padding))
        routes = None
        if batch.routes is not None:
            routes = pad(batch.routes[packed.rows, packed.positions], (0, 0, 0, 0, 0, padding), value=UNKNOWN_EXPERT)
        layout: Layout = packed if self.layout_of is None else self.layout_of(packed)
        return self.flat(token_ids, positions, layout, routes), packed.source

    def flat(self, token_ids: Tensor, positions: Tensor, layout: Layout, routes: Tensor | None = None) -> Tensor:
        """Compute the hidden states [N, H] of a flat row of tokens [N] at `positions` [N], in the shared layout.

        `routes` [N, R, k] are the experts that the routers of a mixture model are to choose.
        """
        with self._replaced(routes):
            return self._run(input_ids=token_ids[None], position_ids=positions[None], layout=layout)[0]

    def scores(self, *tokens: Any, **asked: Any) -> tuple[Tensor, ...]:
        """See `Forward.scores`."""
        with onednn.gradients_by(self.gradients):
            return super().scores(*tokens, **asked)

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
                if self.layout == "shared":
                    replaced.enter_context(_attention_replaced(self.model))
                    replaced.enter_context(_stateful_layers_replaced(self.model))
                    if not compiled:
                        replaced.enter_context(fused_modules(self.model, self.fused, self.rules))
                if not (self.autocast or compiled):
                    same = [
                        *readers(self.model, self.fused),
                        *(layer.readers() for layer in stateful_layers(self.model)),
                    ]
                    replaced.enter_context(onednn.patched_linears(self.model, packed=packed, readers=same))
                yield
        finally:
            self._prepared = False

    @contextmanager
    def _replaced(self, routes: Tensor | None) -> Iterator[None]:
        """Replace what a run of the model calls; `routes` are the experts of its tokens."""
        with self.prepared(), self._replayed(routes), self.precision(), self._layers_wrapped(routes):
            yield

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


@torch.compiler.disable  # each batch has other parts, and would be compiled again
def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention; `transformers` calls this instead of its own. `options` are for other kernels.

    Raises `UnknownAttentionError` for a mask that a layer makes itself, for sinks other than one number of each head,
    and for keys other than those of tokens.
    """
    if layout is None:
        raise UnknownAttentionError("its layers do not hand on to attention what a model is called with")
    if attention_mask is not None:
        raise UnknownAttentionError("its layers make masks of attention themselves")
    if s_aux is not None and s_aux.shape != query.shape[1:2]:
        raise UnknownAttentionError("its attention sinks are not one number of each head")
    if key.shape[2] != query.shape[2]:
        raise UnknownAttentionError("it attends to other keys than one of each token")
    return layout.attend(query, key, value, Rule(scaling, sliding_window, softcap, s_aux)), None


AttentionInterface.register(NAME, _attend)


@contextmanager
def _attention_replaced(model: PreTrainedModel) -> Iterator[None]:
    implementation = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = implementation


def stateful_layers(model: nn.Module) -> list[StatefulLayer]:
    """Return the layers with a state that the shared layout computes in the place of a model's own."""
    return [kind(module) for module in model.modules() for kind in STATEFUL if kind.computes(module)]


def _stateful_layers_replaced(model: nn.Module) -> AbstractContextManager[None]:
    forwards = {layer.module: layer.forward for layer in stateful_layers(model)}
    return wrapped_forwards(list(forwards), forwards.__getitem__)


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(forward, dynamic=True)  # once for all layers of a class, at any length
