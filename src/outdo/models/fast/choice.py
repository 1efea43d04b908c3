"""Choose the fastest way to compute a model that computes what the plain forward pass does."""

import os
import shutil
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outdo.models.choose_forward import AttentionSetting
from outdo.models.fast.forward import FastForward
from outdo.models.fast.fused_modules import KINDS, Kind, OtherOperators, modules_of
from outdo.models.fast.kernels import LAYOUTS, kernel_for
from outdo.models.fast.layout import Rule, StatefulLayer, UnknownAttentionError
from outdo.models.fast.packed import Packed, pack
from outdo.models.fast.routing import find_routers
from outdo.models.forward import Forward
from outdo.models.layers import is_mixture, layers_of
from outdo.models.onednn import Gradients
from outdo.models.probe import NARROW_TOLERANCE, TOLERANCE, Probe, difference, influence, next_logprobs
from outdo.models.windows import windows_of, windows_set_to
from outdo.types import Batch
from outdo.utils.errors import ModelError
from outdo.utils.text import first_line

SAME_DERIVATIVE = 1e-3
"""The relative distance of derivatives in float32 that are equal but for rounding; a mask moves them by their size."""

INDEXED = "an indexer chooses the tokens that its attention reads"
"""A reason against the shared layout that a few tokens do not show."""


def choose_fast(
    plain: Forward,
    probe: Probe,
    attention: AttentionSetting,
    *,
    compile: bool,
    gradient_checkpointing: bool,
    gradients: Gradients,
) -> Forward:
    """Return the fastest forward pass with the settings of `plain`; for the rest see `choose_forward`.

    It is `plain` itself if no other computes the same in float32.
    """
    model, batch = plain.model, probe.batch
    _check_layers(model, compile=compile, gradient_checkpointing=gradient_checkpointing)
    reason = "as requested"
    if attention != "padded":
        shared = FastForward(plain.in_float32(), "shared")
        fault = probe.fault(shared)
        reason = _explained(shared, batch, fault) if fault else _other_connection(shared, batch)
    if reason and attention not in ("auto", "padded"):
        raise ModelError(
            f'attention = "{attention}": the attention of {type(model).__name__} cannot be replaced ({reason}); '
            'attention = "auto" takes the padded way'
        )
    settings: dict[str, Any] = {"compile": compile, "gradient_checkpointing": gradient_checkpointing}
    forward = FastForward(plain, "padded" if reason else "shared", reason=reason, gradients=gradients, **settings)
    if forward.layout == "shared":
        _choose_fused_modules(forward, probe)
        _choose_kernel(forward, attention, batch)
    if fault := probe.fault_in_float32(forward):
        if named := [name for name, value in settings.items() if value]:
            raise ModelError(f"{named[0]} = true: outdo's operators do not compute this model here ({fault})")
        plain.reason = f"with outdo's operators {fault}"
        plain.unreachable_routers = plain.reason if is_mixture(model) else ""
        return plain
    if is_mixture(model):
        _find_routers(forward, batch)
    return forward


def _find_routers(forward: FastForward, batch: Batch) -> None:
    """Set the routers of a mixture model, or why there are none. One row shows them."""
    row = batch.rows(torch.tensor([0], device=forward.device))
    routers = find_routers(forward.model, partial(next_logprobs, forward.in_float32(), row))
    forward.routers, forward.unreachable_routers = (None, routers) if isinstance(routers, str) else (routers, "")


def _choose_fused_modules(forward: FastForward, probe: Probe) -> None:
    """Set the modules that are computed with fewer operators: those kinds that change no log-probability."""
    recorded = _RecordedRules(pack(probe.batch))
    forward.with_weights(lambda: (recorded.run(forward.in_float32()),))
    forward.rules = tuple(recorded.rules)
    others = recorded.operators.kinds
    possible: tuple[Kind, ...] = tuple(
        kind for kind in KINDS if kind not in others and modules_of(forward.model, kind, forward.rules)
    )
    fused = copy(forward.in_float32())

    def right(kinds: tuple[Kind, ...]) -> bool:
        fused.fused = kinds
        return not probe.fault(fused)

    if right(possible):
        forward.fused = possible
        return
    for kind in possible:
        if right((*forward.fused, kind)):
            forward.fused = (*forward.fused, kind)


class _RecordedRules:
    """A layout that keeps the rules with which a model calls attention, and what else its modules call."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.rules: list[Rule] = []
        self.scans = 0
        self.operators = OtherOperators()

    @torch.no_grad()
    def run(self, forward: FastForward) -> Tensor:
        """Run a model once."""
        with self.operators.watching(forward.model):
            return forward.flat(self.packed.token_ids, self.packed.positions, self)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`."""
        self.rules.append(rule)
        with self.operators.paused():
            return self.packed.attend(query, key, value, rule)

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """See `Layout.scan`."""
        self.scans += 1
        return self.packed.scan(inputs, layer)


def _choose_kernel(forward: FastForward, attention: AttentionSetting, batch: Batch) -> None:
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
    fault = difference(partial(next_logprobs, other, batch), next_logprobs(forward, batch), most)
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


def _explained(shared: FastForward, batch: Batch, fault: str) -> str:
    """Return why the shared layout computes other log-probabilities than the model, `fault`, where that is known."""
    packed = pack(batch)
    recorded = _RecordedRules(packed)
    try:
        (hidden,) = shared.with_weights(lambda: (recorded.run(shared),))
    except UnknownAttentionError as error:
        return str(error)
    except Exception as error:  # any error is a reason not to run the model this way
        if _has_indexer(shared.model):
            return INDEXED
        return f"its code does not run with outdo's attention: {type(error).__name__}: {first_line(error)}"
    if not (recorded.rules or recorded.scans):
        return "none of its layers is attention that transformers can replace, or a layer with a state that outdo knows"
    if connection := _other_connection(shared, batch):
        return connection
    with torch.no_grad():
        moved = shared.with_weights(lambda: (shared.flat(packed.token_ids, 2 * packed.positions, packed),))[0]
    if torch.equal(hidden, moved):
        return "it counts positions itself, and does not read those that it is given"
    return f"with shared prompts {fault}"


def _other_connection(shared: FastForward, batch: Batch) -> str:
    """Return what connects tokens other than a `Layout`, a reason against the shared way; empty if nothing does.

    A recurrence that is no `StatefulLayer` lets a sequence read its neighbour in the flat row. A mask that attention
    does not get as an argument would make a difference only in sequences longer than those compared here.
    """
    if _has_indexer(shared.model):  # of more tokens than are compared here, it leaves some out (MiniMax-M3)
        return INDEXED
    packed = pack(batch)
    first, second = torch.arange(packed.sizes[0]).split(packed.prompts.real.sum(1).tolist())  # the prompts' tokens
    derivative = influence(shared.model, lambda: shared.flat(packed.token_ids, packed.positions, packed)[second])
    # Without a connection the derivative is exactly 0. Values may differ in their last bits: experts get other tokens.
    if derivative[0, first].any():
        return "something that is neither attention nor a known layer with a state connects one token with the next"
    if any(getattr(module, "attn_temperature_tuning", False) for module in shared.model.modules()):
        return "its attn_temperature_tuning counts tokens of the row, not positions"  # Llama 4
    windows = windows_of(shared.model)
    hidden = [name for name in windows if windows[name] not in packed.windows and _is_mask(name, shared, batch)]
    return f"its {hidden[0]} is a mask that attention does not get as an argument" if hidden else ""


def _has_indexer(model: PreTrainedModel) -> bool:
    return any(getattr(module, "indexer", None) is not None for module in model.modules())


def _is_mask(window: str, shared: FastForward, batch: Batch) -> bool:
    """Return whether the model itself hides tokens beyond a window that its configuration names.

    With a window of one token, the last token of a row then reads less of those before it. Many configurations name a
    window that no layer has (SmolLM3, Llama).
    """
    model = shared.model
    plain = Forward(model, plain_head=shared.plain_head)
    rows = torch.arange(len(batch), device=plain.device)
    last = rows * batch.token_ids.shape[1] + batch.attention_mask.sum(1) - 1

    def reads() -> Tensor:
        derivative = influence(model, lambda: plain.hidden(batch)[0][last]).flatten(0, 1)  # [B * T, H]
        return derivative.index_fill(0, last, 0.0)  # each last token reads itself

    usual = reads()
    with windows_set_to(1, model, [window], in_modules=True):
        try:
            changed = reads()
        except Exception:  # a window of one token is not possible, so that nothing is shown
            return True
    return bool((changed - usual).norm() > SAME_DERIVATIVE * usual.norm())
