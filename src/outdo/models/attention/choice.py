"""Choose how to run a model, by comparisons on a few tokens rather than by its name."""

import os
import shutil
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.attention.forward import Forward, layers_of
from outdo.models.attention.kernels import LAYOUTS, kernel_for
from outdo.models.attention.packed import Packed, Rule, pack
from outdo.models.base_weights import is_quantised
from outdo.models.device import Precision, resolve_precision
from outdo.models.lean_modules import KINDS, Kind, OtherOperators, modules_of
from outdo.models.limits import MISMATCH
from outdo.models.onednn import ONEDNN, Gradients
from outdo.models.rounding import distance, in_float64, probe_tokens, rounding
from outdo.models.routing import find_routers, is_mixture
from outdo.models.sharding import sharding_of
from outdo.types import Batch
from outdo.utils.errors import ModelError

AttentionSetting = Literal["auto", "shared", "padded", "flash_attention_2", "flex_attention", "ulysses"]
TOLERANCE = 1e-4  # nats, in float32, between two ways to compute a small model; both right, they differ by some 1e-6
TINY = 1e-7  # nats, in float64; so much is allowed where float32 rounds nothing
NARROW_TOLERANCE = 0.5  # nats, between two kernels in bfloat16; whole forward passes were 0.36 apart


def choose_forward(
    model: PreTrainedModel,
    attention: AttentionSetting = "auto",
    *,
    precision: Precision = "auto",
    compile: bool = False,
    gradient_checkpointing: bool = False,
    gradients: Gradients = ONEDNN,
) -> Forward:
    """Choose the fastest way that computes the model's own log-probabilities on a few tokens.

    Replicas that divide a model among them run it together, and choose the same way.

    `attention` may name a kernel for the shared way. Otherwise the device decides: see `kernel_for`. "ulysses" is the
    shared way too, which a `SequenceGroup` computes in parts.

    Raises `ModelError` if padding changes the model's log-probabilities, if `attention` needs the shared way and the
    model does not allow it, if `compile` or `gradient_checkpointing` finds no layers, or if there is no compiler.
    """
    device = sharding_of(model).device
    batch = small_batch(model.config.get_text_config().vocab_size).to(device)
    autocast = resolve_precision(precision, device) == "bfloat16"
    settings: dict[str, Any] = {"autocast": autocast, "compile": compile}
    settings["gradient_checkpointing"] = gradient_checkpointing
    _check_layers(model, compile=compile, gradient_checkpointing=gradient_checkpointing)
    own = _OwnWay(model, batch)
    settings["rounding"] = own.forward.rounding
    _check_padding(own.forward, batch)
    plain = not own.fault(Forward(model, way="padded", plain_head=True, autocast=False))
    # The logits of these few tokens may be too small for a soft cap to make a difference.
    plain = plain and not getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    reason = "as requested"
    if attention != "padded":
        shared = Forward(model, way="shared", plain_head=plain, autocast=False)
        reason = own.fault(shared) or _other_connection(shared, batch)
    if reason and attention not in ("auto", "padded"):
        raise ModelError(
            f'attention = "{attention}": the attention of {type(model).__name__} cannot be replaced ({reason}); '
            'attention = "auto" takes the padded way'
        )
    forward = Forward(model, way="padded" if reason else "shared", plain_head=plain, reason=reason, **settings)
    if forward.way == "shared":
        _choose_lean_modules(forward, own, batch)
        _choose_kernel(forward, attention, batch)
    if is_mixture(model):
        found = find_routers(model, partial(_logprobs, forward.in_float32(), batch))
        forward.routers, forward.unreachable_routers = (None, found) if isinstance(found, str) else (found, "")
    forward.gradients = gradients
    return forward


def _choose_lean_modules(forward: Forward, own: "_OwnWay", batch: Batch) -> None:
    """Set the modules that are computed with fewer operators: those kinds that change no log-probability."""
    recorded = _RecordedRules(pack(batch))
    forward.with_weights(lambda: (recorded.run(forward.in_float32()),))
    forward.rules = tuple(recorded.rules)
    others = recorded.operators.kinds
    possible: tuple[Kind, ...] = tuple(
        kind for kind in KINDS if kind not in others and modules_of(forward.model, kind, forward.rules)
    )
    lean = copy(forward.in_float32())

    def right(kinds: tuple[Kind, ...]) -> bool:
        lean.lean = kinds
        return not own.fault(lean)

    if right(possible):
        forward.lean = possible
        return
    for kind in possible:
        if right((*forward.lean, kind)):
            forward.lean = (*forward.lean, kind)


class _RecordedRules:
    """A layout that keeps the rules with which a model calls attention, and what else its modules call."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.rules: list[Rule] = []
        self.operators = OtherOperators()

    @torch.no_grad()
    def run(self, forward: Forward) -> Tensor:
        """Run a model once."""
        with self.operators.watching(forward.model):
            return forward.flat(self.packed.token_ids, self.packed.positions, self)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`."""
        self.rules.append(rule)
        with self.operators.paused():
            return self.packed.attend(query, key, value, rule)


def _choose_kernel(forward: Forward, attention: AttentionSetting, batch: Batch) -> None:
    """Set the kernel of attention, if it computes what SDPA computes in the precision of the model.

    Raises `ModelError` if it does not and `attention` names it; otherwise the model keeps SDPA, with the reason.
    """
    named = attention in ("flash_attention_2", "flex_attention")
    kernel = attention if named else kernel_for(forward.device, autocast=forward.autocast)
    if kernel == "sdpa":
        return
    other = copy(forward)
    other.kernel, other.layout_of = kernel, LAYOUTS[kernel]
    most = NARROW_TOLERANCE if forward.autocast else forward.tolerance(TOLERANCE)
    fault = _difference(partial(_logprobs, other, batch), _logprobs(forward, batch), most)
    if fault and named:
        raise ModelError(f'attention = "{attention}": does not work here ({fault}); attention = "auto" finds what does')
    if fault:
        forward.reason = f"without {kernel}: {fault}"
    else:
        forward.kernel, forward.layout_of = kernel, other.layout_of


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


class _OwnWay:
    """What a model computes of a few tokens as its authors made it, with which other ways are compared."""

    def __init__(self, model: PreTrainedModel, batch: Batch) -> None:
        self.forward = Forward(model, way="padded", plain_head=False, autocast=False)
        self.batch = batch
        compute = partial(_logprobs, self.forward, batch)
        self.forward.rounding = rounding(model, compute)
        # The kernels of quantised weights write float32 into whatever memory is asked for in float64.
        impossible = self.forward.sharding.is_divided or any(map(is_quantised, model.parameters()))
        self.wide = None if impossible else in_float64(compute)
        self.narrow = _logprobs(self.forward, batch)

    def fault(self, other: Forward) -> str:
        """Return how another way differs from the model's own in what it computes; empty if it does not.

        In float64, where both can be computed in it, they may differ by the rounding of float32.
        """
        compute = partial(_logprobs, other, self.batch)
        if self.wide is not None and (found := in_float64(compute)) is not None:
            return _difference(lambda: found, self.wide, max(self.forward.rounding, TINY))
        return _difference(compute, self.narrow, self.forward.tolerance(TOLERANCE))


@torch.no_grad()
def _difference(compute: Callable[[], Tensor], expected: Tensor, most: float) -> str:
    """Return the `distance` of log-probabilities from those expected, if it is more than `most`; otherwise nothing."""
    try:
        actual = compute()
    except Exception as error:  # any error is a reason not to run the model this way
        return f"{type(error).__name__}: {error}"
    if actual.shape != expected.shape:
        return f"it returns {actual.shape[-1]} values, and the model has a vocabulary of {expected.shape[-1]}"
    gap = distance(expected, actual)
    return "" if gap <= most else f"its log-probabilities differ by {gap:.2g} nats"  # NaN is not


@torch.no_grad()
def _check_padding(padded: Forward, batch: Batch) -> None:
    """Raise `ModelError` if a row of a padded batch has other log-probabilities than the model computes of it alone."""
    together, lengths = _logprobs(padded, batch), batch.attention_mask.sum(1).tolist()

    def compute() -> tuple[Tensor, ...]:
        alone = []
        for row, length in zip(range(len(batch)), lengths, strict=True):
            logits = padded.model(input_ids=batch.token_ids[row : row + 1, :length], use_cache=False).logits[0]
            predicts = batch.loss_mask[row, 1:length].nonzero()[:, 0]
            alone.append(logits[predicts].float().log_softmax(-1))  # of [L, V]
        return tuple(alone)

    gap = float((together - torch.cat(padded.with_weights(compute))).abs().max())
    if not gap < padded.tolerance(MISMATCH):
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
        (hidden,) = shared.with_weights(lambda: (shared.flat(packed.token_ids, packed.positions, packed)[second],))
        # The derivative of a plain sum is 0 behind a norm.
        uneven = torch.linspace(1, 2, hidden.shape[1], device=hidden.device)
        (derivative,) = torch.autograd.grad((hidden * uneven).sum(), embeddings)
    # Without a connection the derivative is exactly 0. Values may differ in their last bits: experts get other tokens.
    if derivative[0, first].any():
        return "something other than attention connects one token with the next"
    if any(getattr(module, "attn_temperature_tuning", False) for module in shared.model.modules()):
        return "its attn_temperature_tuning counts tokens of the row, not positions"  # Llama 4
    config = shared.model.config.get_text_config()
    unused = [
        name
        for name in ("sliding_window", "attention_chunk_size")
        if getattr(config, name, None) and getattr(config, name) not in packed.windows
    ]
    return f"its {unused[0]} is a mask that attention does not get as an argument" if unused else ""


@torch.no_grad()  # a graph would keep the gathered weights of a divided model
def _logprobs(forward: Forward, batch: Batch) -> Tensor:
    def compute() -> tuple[Tensor]:
        hidden, source = forward.hidden(batch)
        return (forward.head(hidden[source[:, :-1][batch.loss_mask]]).float().log_softmax(-1),)

    return forward.with_weights(compute)[0]


def small_batch(vocabulary: int) -> Batch:
    """Two prompts with two answers each, all of different lengths."""
    tokens = probe_tokens(vocabulary)
    prompts = [tokens[:5]] * 2 + [tokens[:11]] * 2
    completions = [tokens[start : start + length] for start, length in ((5, 6), (10, 9), (11, 6), (22, 9))]
    return Batch.of_tokens(prompts, completions, group=[0, 0, 1, 1])
