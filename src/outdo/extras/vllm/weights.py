"""Write the weights of a policy into a folder that vLLM reads: the whole model, or its adapter alone."""

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from outdo.models.adapter import NAME, has_adapter, save_adapter
from outdo.models.base_weights import is_quantised
from outdo.models.gguf_folder import converted
from outdo.models.gguf_header import is_gguf
from outdo.models.inspect_folder import cached_snapshot
from outdo.models.limits import CHANGING_BASE
from outdo.models.loading import save_model
from outdo.rollouts.engines.base import PolicyView
from outdo.utils.errors import EngineError


def bytes_of(model: PreTrainedModel) -> int:
    """Return the bytes that two deliveries of a model take: the next one is written before the last is removed."""
    return 2 * sum(weight.numel() * weight.element_size() for weight in model.parameters())


def bytes_in(folder: Path) -> int:
    """Return the bytes of the weights in the folder of a delivery."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def why_merged(model: PreTrainedModel) -> str:
    """Return why vLLM cannot serve the adapter of a model beside its base; empty if it can.

    Such an adapter is delivered merged into the weights.
    """
    config = _adapter_config(model)
    if config.peft_type != "LORA":
        return f"vLLM serves adapters of the method lora only, not {str(config.peft_type.value).lower()}"
    for option, plain in (
        ("use_dora", False),
        ("modules_to_save", None),
        ("bias", "none"),
        ("target_parameters", None),
        ("rank_pattern", {}),
        ("alpha_pattern", {}),
        ("trainable_token_indices", None),
    ):
        value = getattr(config, option, plain)
        if value and value != plain:
            return f"vLLM does not serve LoRA with {option}"
    if str(config.init_lora_weights).startswith(CHANGING_BASE):
        return f'init_lora_weights = "{config.init_lora_weights}" has changed the base'
    targets = [str(target) for target in config.target_modules or ()]
    if outside := [name for name in targets if name.rpartition(".")[2] in ("lm_head", "embed_tokens")]:
        return f"the adapter changes {outside[0]}"
    return ""


def base_folder(model: PreTrainedModel) -> str:
    """Return the folder of the base of a model with an adapter."""
    config = _adapter_config(model)
    if is_gguf(config.base_model_name_or_path):
        return str(converted(Path(config.base_model_name_or_path)))
    if config.revision is None:
        return str(config.base_model_name_or_path)
    folder = cached_snapshot(f"{config.base_model_name_or_path}@{config.revision}")
    assert folder is not None  # the base is loaded
    return str(folder)


def rank_of(model: PreTrainedModel) -> int:
    """Return the rank of the LoRA adapter of a model."""
    return int(_adapter_config(model).r)


def targets_of(model: PreTrainedModel) -> list[str]:
    """Return the names of the layers that the adapter of a model changes, without their places: `q_proj` ..."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    return sorted({name.rpartition(".")[2] for name in layers})


def write_weights(policy: PolicyView, folder: Path, *, as_adapter: bool) -> None:
    """Write the adapter of a policy, or its whole model: an adapter is merged into it."""
    model = policy.model
    if as_adapter:
        save_adapter(model, folder)
    elif has_adapter(model):
        weights, config = merged_weights(model), copy.deepcopy(model.config)
        if len(weights.keys() & _ends(model)) == 2:  # vLLM would read the embedding for both
            config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
        config.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        if policy.other_parts is not None:
            policy.other_parts.write(folder)
    else:
        save_model(model, folder, policy.other_parts)


def write_tokenizer(policy: PolicyView, folder: Path) -> None:
    """Write the tokenizer beside the weights; vLLM needs it for texts that end an answer."""
    policy.tokenizer.save_pretrained(folder)


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of a model with its adapter merged into them, by the names of the model without an adapter.

    The model itself is not changed. One layer at a time exists twice. A head that shares the weight of the embedding is
    left out, unless the adapter has made them different.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper, TrainableTokensWrapper

    weights: dict[str, Tensor] = {}
    inside: list[str] = []
    for name, module in model.named_modules():
        if name.startswith(tuple(inside)):  # a part of a layer that is merged already
            continue
        if isinstance(module, TrainableTokensWrapper):
            merged = _merged(module.token_adapter)
        elif isinstance(module, BaseTunerLayer):
            merged = _merged(module)
        elif isinstance(module, AuxiliaryTrainingWrapper):
            copies: Any = module.modules_to_save
            merged = dict(copies[NAME].named_parameters())
        else:
            continue
        inside.append(f"{name}.")
        weights |= {f"{name}.{part}": weight.detach() for part, weight in merged.items()}
    outside = {
        name: weight.detach()
        for name, weight in model.named_parameters()  # a tied weight has one name
        if not name.startswith(tuple(inside))
    }
    weights |= outside
    weights = _without_equal_head(model, weights)
    for name, weight in weights.items():
        if is_quantised(weight) or not weight.is_floating_point():  # torchao names the dtype it computes with
            raise EngineError(
                f"{name}: quantised weights cannot be merged with this adapter, which vLLM does not serve beside them; "
                'use weights = "bfloat16"'
            )
    return {name: weight.cpu().contiguous() for name, weight in weights.items()}


def _without_equal_head(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model, those of embedding and head once if they share one that is still the same."""
    whole = _ends(model) | weights
    embedding, head = _ends(model)
    # A model that reads images has a configuration of its text as well, which can say something else of this.
    if {embedding, head} & {*model.all_tied_weights_keys} and torch.equal(whole[embedding], whole[head]):
        del whole[head]
    return whole


def _ends(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the names of the weights of embedding and head, and these weights without an adapter."""
    ends: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    names = {id(module): name for name, module in model.named_modules()}
    return {f"{names[id(module)]}.weight": module.weight.detach() for module in ends}


def _merged(layer: Any) -> dict[str, Tensor]:
    """Return the weights of the base of a layer with its adapter merged into them. The layer is not changed.

    Experts with several adapted tensors have a layer of the adapter for each of them, one inside the other.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    merged = copy.deepcopy(layer)
    while isinstance(merged, BaseTunerLayer):
        merged.merge(safe_merge=True)
        merged = merged.get_submodule("base_layer")  # pyright: ignore[reportAttributeAccessIssue]
    return dict(merged.named_parameters())


def _adapter_config(model: PreTrainedModel) -> Any:
    return model.peft_config[NAME]  # type: ignore[attr-defined]
