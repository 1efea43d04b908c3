"""Choose how to compute a model, by comparisons on a few tokens rather than by its name."""

from typing import Literal

from transformers import PreTrainedModel

from outdo.models.device import Precision, resolve_precision
from outdo.models.forward import Forward
from outdo.models.layers import is_mixture
from outdo.models.onednn import ONEDNN, Gradients
from outdo.models.probe import Probe
from outdo.utils.errors import ModelError
from outdo.utils.extras import FAST_FORWARD, MISSING, fast, without

AttentionSetting = Literal["auto", "shared", "padded", "flash_attention_2", "flex_attention", "ulysses"]


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

    It is the plain one where `outdo.models.fast` was deleted. Replicas that divide a model among them run it together,
    and choose the same way.

    `attention` may name a kernel for the shared layout. Otherwise the device decides: see `kernel_for`. "ulysses" is
    the shared layout too, which a `SequenceGroup` computes in parts. `compile` and `gradient_checkpointing` are those
    of `FastForward`, and `gradients` the libraries of the backward pass on a CPU.

    Raises `ModelError` if padding changes the model's log-probabilities, if `attention` needs the shared layout and the
    model does not allow it, if `compile` or `gradient_checkpointing` finds no layers, or if there is no compiler; and
    if `outdo.models.fast` is needed and was deleted.
    """
    choose_fast = fast("outdo.models.fast.choice:choose_fast")
    settings = {"compile": compile, "gradient_checkpointing": gradient_checkpointing}
    named = [f"{name} = true" for name, value in settings.items() if value]
    named += [] if attention in ("auto", "padded") else [f'attention = "{attention}"']
    if choose_fast is None and named:
        raise ModelError(f"{named[0]}: needs {FAST_FORWARD}, which {MISSING}")
    probe = Probe(model)
    # The logits of these few tokens may be too small for a soft cap to make a difference.
    capped = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    plain = Forward(
        model,
        plain_head=not capped and not probe.fault(Forward(model, plain_head=True)),
        autocast=resolve_precision(precision, probe.plain.device) == "bfloat16",
        rounding=probe.rounding,
        reason="as requested" if attention == "padded" else without(FAST_FORWARD),
    )
    if choose_fast is None:
        plain.unreachable_routers = without(FAST_FORWARD) if is_mixture(model) else ""
        return plain
    return choose_fast(plain, probe, attention, gradients=gradients, **settings)
