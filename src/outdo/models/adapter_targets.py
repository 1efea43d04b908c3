"""The modules of a model that an adapter is on: those that it does not fit are refused, or left out of all of them."""

import copy
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from outdo.models.limits import CHANGING_BASE
from outdo.models.text_part import left_out
from outdo.utils.errors import ModelError

if TYPE_CHECKING:
    from peft import PeftConfig

ALL_LINEAR = "all-linear"
"""The targets that are all linear layers but the head, as PEFT calls them."""


def kind_of(config: "PeftConfig") -> str:
    """Return the name of the method of an adapter, such as lora."""
    return str(getattr(config.peft_type, "value", config.peft_type)).lower()


def check_targets(model: PreTrainedModel, config: "PeftConfig") -> None:
    """Raise `ModelError` if an adapter does not work on the embedding, the head or another module that it names."""
    _check_ends(model, config)
    _check_fit(model, config)


def _check_ends(model: PreTrainedModel, config: "PeftConfig") -> None:
    """Raise `ModelError` if an adapter does not work on the embedding or the head of a model.

    Trained tokens are added to the embedding in float32. Where embedding and head share a weight, an initialisation
    that changes it under the one changes the other as well; PEFT ties two layers of an adapter by a computed view,
    which no copy of the model can have; and it merges trained tokens and a layer into different copies of the weight.
    """
    from peft.tuners.tuners_utils import check_target_module_exists

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    dtype = embedding.get_parameter("weight").dtype
    tokens = getattr(config, "trainable_token_indices", None)
    if (tokens or getattr(config, "token_indices", None)) and dtype != torch.float32:
        raise ModelError(f'trained tokens need an embedding in float32, not {str(dtype)[6:]}: weights = "float32"')
    targets = getattr(config, "target_modules", None)
    if not shares_head(model) or not targets or _is_on_all(config):
        return
    names = [name for name, module in model.named_modules() if module in (embedding, head)]
    on = [name for name in names if check_target_module_exists(config, name)]
    start = str(getattr(config, "init_lora_weights", True))
    for option, is_set in (
        (f'init_lora_weights = "{start}"', start.startswith(CHANGING_BASE)),
        ("ensure_weight_tying = true", getattr(config, "ensure_weight_tying", False)),
        ("trainable_token_indices", bool(tokens)),
    ):
        if on and is_set:
            (other,) = set(names) - {on[0]}
            shared = f"does not work beside the target {on[0]}, which shares its weight with {other}"
            raise ModelError(f"{option} {shared}; leave one of the two out")


def shares_head(model: PreTrainedModel) -> bool:
    """Return whether the head of a model has the weight of its embedding."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return head is not None and getattr(head, "weight", None) is getattr(embedding, "weight", False)


def give_own_head(model: PreTrainedModel) -> None:
    """Give the head a weight of its own, equal to that of the embedding, which it shared."""
    head: Any = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def _check_fit(model: PreTrainedModel, config: "PeftConfig") -> None:
    """Raise `ModelError` if an adapter is asked to be on a module on which it does not work."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if not getattr(config, "target_modules", None) or _is_on_all(config):
        return
    if on := [name for name in _unfit_modules(model, config) if check_target_module_exists(config, name)]:
        raise ModelError(
            f"an adapter of the kind {kind_of(config)} does not work on {on[0]} of a {model.config.model_type} model; "
            f"leave {_end(on[0])} out of its targets"
        )


def _unfit_modules(model: PreTrainedModel, config: "PeftConfig") -> dict[str, nn.Module]:
    """Return the modules of a model on which an adapter of this kind does not work, by name.

    PEFT refuses LoRA where the kernels of a Mamba layer read the weight itself. The first Mamba reads that of `dt_proj`
    without a kernel, too. A router returns more than one tensor.
    """
    modules = dict(model.named_modules())
    return {
        name: module
        for name, module in modules.items()
        if _is_refused(_end(name), model, config)
        or (_end(name) == "dt_proj" and f"{name.removesuffix('dt_proj')}x_proj" in modules)
        or (isinstance(module, nn.Linear) and type(module).__name__.endswith("Router"))
    }


def _is_refused(end: str, model: PreTrainedModel, config: "PeftConfig") -> bool:
    """Return whether PEFT refuses an adapter on modules whose names have this end."""
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    try:
        _check_lora_target_modules_mamba(config, model, end)
    except ValueError:
        return True
    return False


def on_what_fits(model: PreTrainedModel, config: "PeftConfig") -> "PeftConfig":
    """Return a copy of a configuration that attaches nothing to the modules that a text part leaves out.

    The saved adapter is also loaded into the whole model, where the names of its targets are those of other parts too.
    An adapter on all linear layers leaves out those on which it does not work.
    """
    made: Any = copy.deepcopy(config)
    excluded = getattr(made, "exclude_modules", "")  # a pattern, or the ends of names
    if isinstance(excluded, str):
        return made
    unfit = _unfit_layers(model, config)
    all_ends = sorted({*(excluded or ()), *unfit})
    if left_out(model):
        parts = [rf"{re.escape(part)}.*" for part in left_out(model)]
        made.exclude_modules = "|".join((*(rf"(?:.*\.)?{re.escape(end)}" for end in all_ends), *parts))
    elif unfit:
        made.exclude_modules = all_ends
    return made


def left_out_note(model: PreTrainedModel, config: "PeftConfig") -> str:
    """Return a sentence on the linear layers of a model that an adapter on all of them leaves out; empty: none."""
    if not (ends := _unfit_layers(model, config)):
        return ""
    which = f"where {kind_of(config)} does not work in a {model.config.model_type} model"
    return f"adapter: on all linear layers but {', '.join(ends)}, {which}"


def _unfit_layers(model: PreTrainedModel, config: "PeftConfig") -> list[str]:
    """Return the ends of the names of the linear layers that an adapter on all of them leaves out."""
    if not _is_on_all(config):
        return []
    unfit = _unfit_modules(model, config)
    return sorted({_end(name) for name, module in unfit.items() if isinstance(module, nn.Linear)})


def _is_on_all(config: "PeftConfig") -> bool:
    return str(getattr(config, "target_modules", None)).lower() == ALL_LINEAR


def _end(name: str) -> str:
    return name.rpartition(".")[2]
