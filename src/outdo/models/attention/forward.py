"""The forward pass of a causal language model: from tokens to hidden states, and from these to logits.

It runs in one of two ways. `shared` replaces the attention of the unmodified `transformers` model by outdo's own,
through the interface that `transformers` has for this: each prompt is computed once per group, and nothing is padded.
`padded` runs the model as its authors did. `Forward.choose` finds out by a comparison on a few tokens whether a model
allows `shared`; it does not guess from the model's name.
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
from outdo.models.attention.packed import Rule, pack
from outdo.models.device import Precision, resolve_precision
from outdo.models.limits import MISMATCH
from outdo.models.logprobs import Entropy, chunked_scores, predecessors
from outdo.types import Batch
from outdo.utils.errors import ModelError

Way = Literal["shared", "padded"]
AttentionSetting = Literal["auto", "shared", "padded"]
NAME = "outdo"
TOLERANCE = 1e-4  # nats, in float32; where both ways are right they differ by some 1e-6


class Layout(Protocol):
    """The positions of tokens in a flat row, with an attention that lets each token read what it may."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """query and key [1, heads, N, d], [1, kv_heads, N, d], value [1, kv_heads, N, e] -> [1, N, heads, e]."""
        ...


class Sharding(Protocol):
    """How the weights of a model are divided among replicas, each of which holds a part of every weight."""

    def __call__(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Call `compute`, which runs the model, with the weights gathered layer by layer; also in its backward pass.

        All replicas have to do so equally often.
        """
        ...

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context in which this process holds all weights, and may run the model as often as it likes."""
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
    ) -> None:
        self.model = model
        self.way: Way = way
        self.plain_head = plain_head  # whether logits are the output embedding of the hidden state, nothing more
        self.autocast = autocast  # bfloat16 products; the weights stay float32
        self.reason = reason  # why it is not the shared way
        self.compile = compile  # of the layers, in training; not in sampling and measuring
        # Keep only the input of each layer, and compute the layer again in the backward pass.
        self.gradient_checkpointing = gradient_checkpointing
        self.device = model.device
        self.sharding: Sharding | None = None  # None: this process holds all weights
        self._prepared = False

    @classmethod
    def choose(
        cls,
        model: PreTrainedModel,
        attention: AttentionSetting = "auto",
        *,
        precision: Precision = "auto",
        compile: bool = False,
        gradient_checkpointing: bool = False,
    ) -> "Forward":
        """Choose the fastest way that computes the model's own log-probabilities on a few tokens.

        Raises `ModelError` if padding changes the model's log-probabilities, if `attention` is "shared" and the model
        does not allow it, if `compile` or `gradient_checkpointing` finds no layers, or if there is no compiler.
        """
        batch = small_batch(model.config.get_text_config().vocab_size).to(model.device)
        autocast = resolve_precision(precision, model.device) == "bfloat16"
        settings = {"autocast": autocast, "compile": compile, "gradient_checkpointing": gradient_checkpointing}
        _check_layers(model, compile=compile, gradient_checkpointing=gradient_checkpointing)
        padded = cls(model, way="padded", plain_head=False, autocast=False)
        _check_padding(padded, batch)
        plain = not _difference(padded, cls(model, way="padded", plain_head=True, autocast=False), batch)
        # The logits of these few tokens may be too small for a soft cap to make a difference.
        plain = plain and not getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        if attention == "padded":
            return cls(model, way="padded", plain_head=plain, reason="as requested", **settings)
        shared = cls(model, way="shared", plain_head=plain, autocast=False)
        reason = _difference(padded, shared, batch) or _other_connection(shared, batch)
        if reason and attention == "shared":
            raise ModelError(
                f'attention = "shared": the attention of {type(model).__name__} cannot be replaced ({reason}); '
                'attention = "auto" takes the padded way'
            )
        return cls(model, way="padded" if reason else "shared", plain_head=plain, reason=reason, **settings)

    def with_model(self, model: PreTrainedModel, *, plain_head: bool | None = None) -> "Forward":
        """Return the forward pass of another model of the same kind, run in the same way."""
        other = copy(self)
        other.model, other.device = model, model.device
        other.sharding = self.sharding if model is self.model else None
        other.plain_head = self.plain_head if plain_head is None else plain_head
        return other

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
        return compute() if self.sharding is None else self.sharding(compute)

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context for many runs of the model; see `Sharding.gathered`."""
        return nullcontext() if self.sharding is None else self.sharding.gathered()

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute hidden states [N, H], and for each token the index of the hidden state that predicts it.

        The indices are [B, T + 1]: the column after an answer's last token has the state after the whole answer.
        """
        if self.way == "shared":
            packed = pack(batch)
            tokens = len(packed.token_ids)
            padding = onednn.pad_to_bucket(tokens) - tokens if self.device.type == "cpu" else 0
            token_ids, positions = (pad(each, (0, padding)) for each in (packed.token_ids, packed.positions))
            return self.flat(token_ids, positions, packed), packed.source
        rows, width = batch.token_ids.shape
        # The model finds the positions itself: some count from another number than 0 (RoBERTa).
        hidden = self._run(input_ids=batch.token_ids, attention_mask=batch.attention_mask.long())
        start = torch.arange(rows, device=self.device)[:, None] * width
        return hidden.flatten(0, 1), start + predecessors(width + 1, self.device)  # [B * T, H], [B, T + 1]

    def flat(self, token_ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Compute the hidden states [N, H] of a flat row of tokens [N] at `positions` [N], in the shared way."""
        return self._run(input_ids=token_ids[None], position_ids=positions[None], layout=layout)[0]

    def scores(
        self, hidden: Tensor, token_ids: Tensor, temperature: Tensor, *, entropy: Entropy, chunk: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities [N] and entropies [N] of the tokens that `hidden` [N, H] predicts.

        See `chunked_scores`.
        """
        with self.precision():
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
        `packed`: see `onednn.patched_linears`; the weights must not change in the block.
        """
        if self._prepared:
            yield
            return
        attention = _attention_replaced(self.model) if self.way == "shared" else nullcontext()
        own_products = self.autocast or (self.compile and torch.is_grad_enabled())  # oneDNN's are not used
        self._prepared = True
        try:
            with attention, nullcontext() if own_products else onednn.patched_linears(self.model, packed=packed):
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
        recompute = {
            "use_reentrant": False,
            "preserve_rng_state": False,
            "context_fn": lambda: (nullcontext(), self.prepared()),  # the backward pass runs outside of this block
        }

        def wrap(layer: nn.Module) -> Callable[..., Any]:
            forward = partial(_compiled(type(layer).forward), layer) if self.compile else layer.forward
            return partial(checkpoint, forward, **recompute) if self.gradient_checkpointing else forward

        return _wrapped_forwards(layers_of(self.model), wrap)

    @property
    def precision_name(self) -> Precision:
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


def _check_layers(model: PreTrainedModel, *, compile: bool, gradient_checkpointing: bool) -> None:
    settings = {"compile": compile, "gradient_checkpointing": gradient_checkpointing}
    enabled = [name for name, value in settings.items() if value]
    if enabled and not layers_of(model):
        raise ModelError(
            f"{enabled[0]} = true: {type(model).__name__} does not mark its layers as `transformers` does for this"
        )
    compilers = [os.environ.get("CXX", "g++"), "clang++"]
    if compile and not any(map(shutil.which, compilers)):
        raise ModelError(f"compile = true: needs a C++ compiler, and there is neither {' nor '.join(compilers)} here")


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(forward, dynamic=True)  # once for all layers of a class, at any length


@contextmanager
def _wrapped_forwards(layers: Sequence[nn.Module], wrap: Callable[[nn.Module], Callable[..., Any]]) -> Iterator[None]:
    """Replace the `forward` of layers by a wrapped one during a `with` block."""
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
    """Return how `other` differs from `reference` in what it computes; empty if it does not."""
    expected = _logprobs(reference, batch)
    try:
        actual = _logprobs(other, batch)
    except Exception as error:  # any error is a reason not to run the model this way
        return f"{type(error).__name__}: {error}"
    if actual.shape != expected.shape:
        return f"it returns {actual.shape[-1]} values, and the model has a vocabulary of {expected.shape[-1]}"
    gap = float((actual - expected).abs().max())
    return "" if gap < TOLERANCE else f"its log-probabilities differ by {gap:.2g}"


@torch.no_grad()
def _check_padding(padded: Forward, batch: Batch) -> None:
    """Raise `ModelError` if a row of a padded batch has other log-probabilities than the model computes of it alone."""
    together, lengths = _logprobs(padded, batch), batch.attention_mask.sum(1).tolist()
    alone = []
    for row, length in zip(range(len(batch)), lengths, strict=True):
        logits = padded.model(input_ids=batch.token_ids[row : row + 1, :length], use_cache=False).logits[0]  # [L, V]
        predicts = batch.loss_mask[row, 1:length].nonzero()[:, 0]
        alone.append(logits[predicts].float().log_softmax(-1))
    gap = float((together - torch.cat(alone)).abs().max())
    if not gap < MISMATCH:
        raise ModelError(
            f"{type(padded.model).__name__}: padding changes its log-probabilities by {gap:.2g} nats, or they are not "
            "finite; outdo computes answers of different lengths together and cannot train such a model"
        )


def _other_connection(shared: Forward, batch: Batch) -> str:
    """Return what connects tokens other than `Layout.attend`, a reason against the shared way; empty if nothing does.

    A convolution or a recurrence lets a sequence read its neighbour in the flat row. A mask that attention does not get
    as an argument would make a difference only in sequences longer than those compared here.
    """
    packed = pack(batch)
    first, second = torch.arange(packed.sizes[0]).split(packed.prompts.real.sum(1).tolist())  # the prompts' tokens
    embeddings: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[0].clone()  # which a model may change in place, as it may not change a leaf

    hook = shared.model.get_input_embeddings().register_forward_hook(keep)
    with hook, torch.enable_grad():
        hidden = shared.flat(packed.token_ids, packed.positions, packed)[second]
        # The derivative of a plain sum is 0 behind a norm.
        uneven = torch.linspace(1, 2, hidden.shape[1], device=hidden.device)
        (derivative,) = torch.autograd.grad((hidden * uneven).sum(), embeddings)
    # Without a connection the derivative is exactly 0. Values may differ in their last bits: experts get other tokens.
    if derivative[0, first].any():
        return "something other than attention connects one token with the next"
    config = shared.model.config.get_text_config()
    unused = [
        name
        for name in ("sliding_window", "attention_chunk_size")
        if getattr(config, name, None) and getattr(config, name) not in packed.windows
    ]
    return f"its {unused[0]} is a mask that attention does not get as an argument" if unused else ""


def _logprobs(forward: Forward, batch: Batch) -> Tensor:
    hidden, source = forward.hidden(batch)
    return forward.head(hidden[source[:, :-1][batch.loss_mask]]).float().log_softmax(-1)


def probe_tokens(vocabulary: int) -> list[int]:
    """Return 64 tokens to try a model on."""
    return [(7 * index * index + 3 * index + 1) % vocabulary for index in range(64)]


def small_batch(vocabulary: int) -> Batch:
    """Two prompts with two answers each, all of different lengths."""
    tokens = probe_tokens(vocabulary)
    prompts = [tokens[:5]] * 2 + [tokens[:11]] * 2
    completions = [tokens[start : start + length] for start, length in ((5, 6), (10, 9), (11, 6), (22, 9))]
    return Batch.of_tokens(prompts, completions, group=[0, 0, 1, 1])
