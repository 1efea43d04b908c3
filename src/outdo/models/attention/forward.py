"""A causal language model as two functions, tokens to hidden states and these to logits, run in one of two ways.

The `shared` way puts outdo's own attention into the unmodified `transformers` model, through the interface that
`transformers` has for this: prompts are computed once per group, and nothing is padded. The `padded` way runs the
model as its authors did. Whether a model allows the first is not guessed from its name: `Forward.probe` runs both on
a few tokens and compares.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from outdo.models.attention.kernel import Rule
from outdo.models.attention.packed import pack
from outdo.models.device import Precision, resolve_precision
from outdo.models.logprobs import Entropy, chunked_scores, predecessors
from outdo.types import Batch
from outdo.utils.errors import ModelError

Way = Literal["shared", "padded"]
AttentionSetting = Literal["auto", "shared", "padded"]
NAME = "outdo"
TOLERANCE = 1e-4  # nats, in float32; where both ways are right they differ by some 1e-6


class Layout(Protocol):
    """Knows where tokens stand in a flat row, and lets each read what it may."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """query [1, heads, N, d], key and value [1, kv_heads, N, d] -> [1, N, heads, d]."""
        ...


class Forward:
    """How to run one model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        way: Way,
        plain_head: bool,
        autocast: bool,
        why: str = "",
        compile: bool = False,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.model = model
        self.way: Way = way
        self.plain_head = plain_head  # whether logits are the output embedding of the hidden state, nothing more
        self.autocast = autocast  # bfloat16 products; the weights stay float32
        self.why = why  # what stood against the shared way
        self.compile = compile  # layers that are to be trained; sampling and measuring go as they are
        self.gradient_checkpointing = (
            gradient_checkpointing  # backward, each layer is computed again from its input, which alone is kept
        )
        self.device = model.device
        self._prepared = False

    @classmethod
    def probe(
        cls,
        model: PreTrainedModel,
        attention: AttentionSetting = "auto",
        *,
        precision: Precision = "auto",
        compile: bool = False,
        gradient_checkpointing: bool = False,
    ) -> "Forward":
        """Find the quickest way that gives the model's own log-probabilities on a few tokens.

        Raises `ModelError` if `attention` is "shared" and the model does not allow it, if `compile` or
        `gradient_checkpointing` finds no layers, or if there is no compiler.
        """
        batch = _probe_batch(model.config.get_text_config().vocab_size).to(model.device)
        autocast = resolve_precision(precision, model.device) == "bfloat16"
        how = {"autocast": autocast, "compile": compile, "gradient_checkpointing": gradient_checkpointing}
        _check_layers(model, compile=compile, gradient_checkpointing=gradient_checkpointing)
        whole = cls(model, way="padded", plain_head=False, autocast=False)
        plain = not _difference(whole, cls(model, way="padded", plain_head=True, autocast=False), batch)
        # The few tokens of a probe may have logits too small for a soft cap to show.
        plain = plain and not getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        if attention == "padded":
            return cls(model, way="padded", plain_head=plain, why="as the recipe asks", **how)
        shared = cls(model, way="shared", plain_head=plain, autocast=False)
        why = _difference(whole, shared, batch) or _hidden_tie(shared, batch)
        if why and attention == "shared":
            raise ModelError(
                f'attention = "shared": the attention of {type(model).__name__} cannot be replaced ({why}); '
                'attention = "auto" takes the padded way'
            )
        return cls(model, way="padded" if why else "shared", plain_head=plain, why=why, **how)

    def on(self, model: PreTrainedModel, *, plain_head: bool | None = None) -> "Forward":
        """Another model of the same kind, run in the same way."""
        other = copy(self)
        other.model, other.device = model, model.device
        other.plain_head = self.plain_head if plain_head is None else plain_head
        return other

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Hidden states [N, H] of a batch, and for each token the index of the one that predicts it, [B, T]."""
        if self.way == "shared":
            packed = pack(batch)
            tokens = len(packed.token_ids)
            filling = onednn.pad_to_bucket(tokens) - tokens if self.device.type == "cpu" else 0
            token_ids, positions = (pad(each, (0, filling)) for each in (packed.token_ids, packed.positions))
            return self.flat(token_ids, positions, packed), packed.source
        rows, width = batch.token_ids.shape
        positions = torch.arange(width, device=self.device).expand(rows, width)
        hidden = self._run(
            input_ids=batch.token_ids, attention_mask=batch.attention_mask.long(), position_ids=positions
        )
        start = torch.arange(rows, device=self.device)[:, None] * width
        return hidden.flatten(0, 1), start + predecessors(width, self.device)  # [B * T, H], [B, T]

    def flat(self, token_ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Hidden states [N, H] of a flat row of tokens [N] at `positions` [N]: the shared way."""
        return self._run(input_ids=token_ids[None], position_ids=positions[None], layout=layout)[0]

    def scores(
        self, hidden: Tensor, token_ids: Tensor, temperature: Tensor, *, entropy: Entropy, chunk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] and entropies [N] of the tokens that `hidden` [N, H] predicts: see `chunked_scores`."""
        with self.precision():
            head: nn.Module = self.model.get_output_embeddings()  # type: ignore[assignment]
            linear = self.plain_head and type(head) is nn.Linear
            return chunked_scores(
                head if linear else self.head, hidden, token_ids, temperature, entropy=entropy, chunk=chunk
            )

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, H]; where the head is not plain, `hidden` holds logits already."""
        if not self.plain_head:
            return hidden
        with self.precision():
            head: nn.Module = self.model.get_output_embeddings()  # type: ignore[assignment]
            return head(hidden)

    @contextmanager
    def prepared(self, *, packed: bool = False) -> Iterator[None]:
        """The model with outdo's parts in it, for the length of a `with` block: around many calls it is quicker.

        Outside of it the model is what its authors made, and usable by everybody else. `packed`: see `products`; the
        weights must stay as they are in the block.
        """
        if self._prepared:
            yield
            return
        attention = _attention_replaced(self.model) if self.way == "shared" else nullcontext()
        others = self.autocast or (self.compile and torch.is_grad_enabled())  # they have products of their own
        self._prepared = True
        try:
            with attention, nullcontext() if others else onednn.patched_linears(self.model, packed=packed):
                yield
        finally:
            self._prepared = False

    def _run(self, **inputs: Any) -> Tensor:
        with self.prepared(), self.precision(), self._layers_wrapped():
            if self.plain_head:
                return self.model.base_model(**inputs, use_cache=False).last_hidden_state  # [R, L, H]
            return self.model(**inputs, use_cache=False).logits  # [R, L, V]

    def _layers_wrapped(self) -> AbstractContextManager[None]:
        if not ((self.compile or self.gradient_checkpointing) and torch.is_grad_enabled()):
            return nullcontext()
        again = {
            "use_reentrant": False,
            "preserve_rng_state": False,
            "context_fn": lambda: (nullcontext(), self.prepared()),  # the backward pass comes when this block is left
        }

        def wrap(layer: nn.Module) -> Callable[..., Any]:
            forward = partial(_compiled(type(layer).forward), layer) if self.compile else layer.forward
            return partial(checkpoint, forward, **again) if self.gradient_checkpointing else forward

        return _forwards(_layers(self.model), wrap)

    @property
    def width(self) -> Precision:
        """What products are computed in: to run another model as precisely as this one."""
        return "bfloat16" if self.autocast else "float32"

    def precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)


@torch.compiler.disable  # or each layer, having a number of its own, would be compiled anew
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
    **hints: Any,
) -> tuple[Tensor, None]:
    """What `transformers` calls instead of its own attention; `hints` are for other kernels."""
    if hints.get("s_aux") is not None:
        raise ValueError("it has attention sinks")
    layer: int = module.layer_idx  # type: ignore[assignment]
    return layout.attend(layer, query, key, value, Rule(scaling, sliding_window, softcap)), None


AttentionInterface.register(NAME, _attend)


@contextmanager
def _attention_replaced(model: PreTrainedModel) -> Iterator[None]:
    own = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = own


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    """What hidden states pass one after another, as `transformers` marks it for gradient checkpointing."""
    return [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]


def _check_layers(model: PreTrainedModel, *, compile: bool, gradient_checkpointing: bool) -> None:
    wanted = [
        name for name, value in (("compile", compile), ("gradient_checkpointing", gradient_checkpointing)) if value
    ]
    if wanted and not _layers(model):
        raise ModelError(
            f"{wanted[0]} = true: {type(model).__name__} does not mark its layers as `transformers` does for this"
        )
    compilers = [os.environ.get("CXX", "g++"), "clang++"]
    if compile and not any(map(shutil.which, compilers)):
        raise ModelError(f"compile = true: needs a C++ compiler, and there is neither {' nor '.join(compilers)} here")


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(forward, dynamic=True)  # once for all layers of a class, at any length


@contextmanager
def _forwards(layers: Sequence[nn.Module], wrap: Callable[[nn.Module], Callable[..., Any]]) -> Iterator[None]:
    """The layers' `forward` wrapped for the length of a call."""
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = wrap(layer)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            del layer.forward
            if forward is not None:
                layer.forward = forward


@torch.no_grad()
def _difference(reference: Forward, other: Forward, batch: Batch) -> str:
    """Why `other` does not compute what `reference` does; empty if it does."""
    expected = _probe_logprobs(reference, batch)
    try:
        found = _probe_logprobs(other, batch)
    except Exception as error:  # whatever a model raises on being run this way is a reason not to
        return f"{type(error).__name__}: {error}"
    if found.shape != expected.shape:
        return f"it gives {found.shape[-1]} values where the model has a vocabulary of {expected.shape[-1]}"
    gap = float((found - expected).abs().max())
    return "" if gap < TOLERANCE else f"its log-probabilities differ by {gap:.2g}"


def _hidden_tie(shared: Forward, batch: Batch) -> str:
    """What ties tokens together that `Layout.attend` does not see, as a reason against the shared way; empty if none.

    A convolution or a recurrence lets a sequence see its neighbour in the flat row. A mask that limits sight, of which
    attention is not told, would show only in sequences longer than the probe's.
    """
    packed = pack(batch)
    first, second = torch.arange(packed.sizes[0]).split(packed.prompts.real.sum(1).tolist())  # the prompts' tokens
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        caught.append(output.detach().requires_grad_())
        return caught[0]

    hook = shared.model.get_input_embeddings().register_forward_hook(catch)
    with hook, torch.enable_grad():
        hidden = shared.flat(packed.token_ids, packed.positions, packed)[second]
        uneven = torch.linspace(1, 2, hidden.shape[1], device=hidden.device)  # a norm's plain sum has no derivative
        (pull,) = torch.autograd.grad((hidden * uneven).sum(), caught)
    # A derivative that is not there is exactly 0; values may differ in their last bits, as experts see other company.
    if pull[0, first].any():
        return "something else than attention carries over from one token to the next"
    config = shared.model.config.get_text_config()
    told = packed.windows
    unseen = [
        name
        for name in ("sliding_window", "attention_chunk_size")
        if getattr(config, name, None) and getattr(config, name) not in told
    ]
    return f"its {unseen[0]} is a mask that attention is not told of" if unseen else ""


def _probe_logprobs(forward: Forward, batch: Batch) -> Tensor:
    hidden, source = forward.hidden(batch)
    return forward.head(hidden[source[batch.loss_mask]]).float().log_softmax(-1)


def _probe_batch(vocabulary: int) -> Batch:
    """Two prompts with two answers each, all of different lengths."""
    tokens = [(7 * index * index + 3 * index + 1) % vocabulary for index in range(64)]
    prompts = [tokens[:5]] * 2 + [tokens[:11]] * 2
    completions = [tokens[start : start + length] for start, length in ((5, 6), (10, 9), (11, 6), (22, 9))]
    return Batch.of_tokens(prompts, completions, group=[0, 0, 1, 1])
