"""Adapters of PEFT: few trained weights beside the frozen weights of a model, its base.

The layers of the adapter are injected into the `transformers` model itself, which keeps its class: everything that
runs a model also runs one with an adapter. PEFT is imported only where an adapter is attached or saved.
"""

import copy
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.adapter_targets import ALL_LINEAR, check_targets, kind_of, on_what_fits
from outdo.models.forward import Forward
from outdo.models.inspect_folder import ADAPTER_CONFIG
from outdo.models.limits import DIVISIBLE_LORA
from outdo.models.sharding import sharding_of
from outdo.models.weight_headers import ADAPTER_WEIGHTS
from outdo.utils.errors import ModelError, UserError
from outdo.utils.packages import explained, not_imported
from outdo.utils.sharded_tensors import divided_like

if TYPE_CHECKING:
    from peft import PeftConfig

Model = TypeVar("Model", bound=nn.Module)

EXTRA = ("adapters",)
"""The extra of outdo whose packages adapters need."""
MISSING = 'an adapter needs peft: pip install "outdo[adapters]"'
NAME = "default"
"""The name of the adapter in the modules of the model; what is saved does not contain it."""
PREFIX = "base_model.model."
"""What PEFT writes before the name of each weight in an adapter folder."""


def adapter_config(name: str, **options: Any) -> "PeftConfig":
    """Return the configuration of an adapter, by the name of its method in PEFT: `lora`, `ia3`, `oft`, ...

    `options` are the parameters of the method's configuration class, such as `peft.LoraConfig`. Unlike in PEFT, the
    default targets of `lora` are all linear layers except the head.

    Raises `UserError` if peft is not installed, if it has no such method, or if it refuses the options.
    """
    try:
        from peft import PEFT_TYPE_TO_CONFIG_MAPPING
    except ImportError as error:
        raise UserError([not_imported(error, "peft", MISSING, EXTRA)]) from None
    known: Mapping[Any, type[PeftConfig]] = PEFT_TYPE_TO_CONFIG_MAPPING
    methods = {kind.value.lower(): config for kind, config in known.items()}
    if name not in methods:
        raise UserError([f'peft has no method "{name}"; it has {", ".join(sorted(methods))}'])
    if name == "lora" and "target_parameters" not in options:
        options = {"target_modules": ALL_LINEAR, **options}
    try:
        with _without_warnings():
            return methods[name](**{"task_type": "CAUSAL_LM", **options})
    except (TypeError, ValueError, ImportError) as error:
        raise UserError([explained(name, error, EXTRA)]) from error


def with_head(config: "PeftConfig", head: str) -> "PeftConfig":
    """Return the configuration of an adapter of a classifier, whose head is trained and saved as a whole.

    Raises `ModelError` if the method of the adapter cannot train whole layers.
    """
    made: Any = copy.deepcopy(config)
    if not hasattr(made, "modules_to_save"):
        raise ModelError(f"adapters of the kind {made.peft_type.value} cannot train the head {head}; use lora")
    made.task_type = "SEQ_CLS"
    made.modules_to_save = sorted({*(made.modules_to_save or ()), head})
    return made


def has_adapter(model: nn.Module) -> bool:
    """Return whether an adapter is attached to a model."""
    return NAME in getattr(model, "peft_config", {})


def check_divisible(config: "PeftConfig") -> None:
    """Raise `ModelError` if an adapter does not work on a model that is divided among replicas."""
    if (kind := kind_of(config)) != "lora":
        raise ModelError(f"an adapter of the kind {kind} does not work on a divided model (cluster.shard); lora does")
    from peft import LoraConfig, PeftConfig

    common, plain = vars(PeftConfig()).keys(), vars(LoraConfig())
    for name, value in vars(config).items():
        if name not in common | DIVISIBLE_LORA and value != plain.get(name):
            raise ModelError(f"LoRA with {name} = {value} does not work on a divided model (cluster.shard)")


def attach(model: PreTrainedModel, config: "PeftConfig", *, seed: int = 0) -> None:
    """Attach a new adapter, whose random numbers depend on `seed` only, and freeze all other weights.

    The weights of the adapter are float32, whatever those of the base are. Some initialisations (PiSSA, OLoRA) change
    the base as well.

    Raises `ModelError` if PEFT cannot attach it to this model, if none of its weights would be trained, if it would
    change the base at random: what is saved does not contain the base, so that nothing could load the adapter again;
    and if it does not work on the embedding, the head or a module that it names.
    """
    if str(start := getattr(config, "init_lora_weights", "")).startswith("pissa_niter"):
        raise ModelError(
            f'init_lora_weights = "{start}" changes the base at random, so that a saved adapter fits no base; one that '
            'begins with "pissa" can be loaded again'
        )
    if has_adapter(model):
        raise ModelError("the model has an adapter already; `outdo export --merge` makes a model without one of it")
    check_targets(model, config)
    with torch.random.fork_rng(devices=[]), _without_warnings():
        torch.manual_seed(seed)
        try:
            _inject(model, on_what_fits(model, config))
        except (TypeError, ValueError, ImportError, RuntimeError, AttributeError, LookupError) as error:
            raise ModelError(explained("the adapter does not fit the model", error, EXTRA)) from error
    trained = trained_weights(model).values()
    if not trained:
        raise ModelError("nothing to train: the adapter has no weight in any layer of the model")
    for weight in trained:
        weight.data = weight.data.float()


def _inject(model: PreTrainedModel, config: "PeftConfig") -> None:
    """Put the layers of a new adapter into a model, by PEFT's own function.

    `add_adapter` of transformers calls the same one, but refuses the newest PEFT where the next one is not out yet.
    """
    from peft import inject_adapter_in_model

    config.base_model_name_or_path = model.name_or_path
    config.inference_mode = False  # it is trained, also if its configuration is that of a saved adapter
    inject_adapter_in_model(config, model, NAME)
    # For methods of transformers that a program may call: `save_pretrained` would write layers that no model has.
    model._hf_peft_config_loaded = True


def saved_config(folder: Path) -> "PeftConfig":
    """Read the configuration of the adapter in `folder`.

    Raises `ModelError` if peft is not installed, or cannot read it.
    """
    try:
        from peft import PeftConfig
    except ImportError as error:
        raise ModelError(f"model {folder}: {not_imported(error, 'peft', MISSING, EXTRA)}") from None
    try:
        return PeftConfig.from_pretrained(str(folder))
    except (OSError, TypeError, ValueError, LookupError) as error:
        raise ModelError(explained(f"model {folder}: the adapter cannot be loaded", error, EXTRA)) from error


def attach_saved(model: PreTrainedModel, folder: Path) -> None:
    """Attach the adapter that is in `folder`, ready to be trained further.

    Raises `ModelError` as `saved_config` does, and if the adapter does not fit the model.
    """
    config = saved_config(folder)
    from peft import set_peft_model_state_dict

    try:
        with _without_warnings():
            attach(model, config)
            stored = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
            report = set_peft_model_state_dict(model, stored, NAME)
    except (OSError, TypeError, ValueError, RuntimeError, LookupError, SafetensorError) as error:
        raise ModelError(explained(f"model {folder}: the adapter cannot be loaded", error, EXTRA)) from error
    missing = sorted(trained_weights(model).keys() & set(report.missing_keys))
    for fault, names in (("lacks", missing), ("has too many weights:", sorted(report.unexpected_keys))):
        if names:
            raise ModelError(f"model {folder}: {ADAPTER_WEIGHTS} {fault} {len(names)}, such as {names[0]}")


def save_adapter(model: PreTrainedModel, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained` loads: configuration and weights of the adapter.

    `state` is what `state_dict` of the model returns, or was at an earlier time.
    """
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    settings = _config(model).to_dict().items()
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in settings}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with _without_warnings():
        weights: Mapping[str, Tensor] = get_peft_model_state_dict(
            model, state_dict=state, adapter_name=NAME, save_embedding_layers=False
        )
    copies = {f"{PREFIX}{name}": weight.detach().cpu().clone().contiguous() for name, weight in weights.items()}
    save_file(copies, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Add the adapter in `folder` to the weights of its base; return the base, which has no adapter then.

    Raises `ModelError` if PEFT cannot merge adapters of this kind.
    """
    from peft import PeftModel

    try:
        with _without_warnings():
            model = PeftModel.from_pretrained(base, str(folder)).merge_and_unload(safe_merge=True)
    except (TypeError, ValueError, ImportError, RuntimeError, AttributeError, LookupError) as error:
        raise ModelError(explained(f"model {folder}: the adapter cannot be merged", error, EXTRA)) from error
    return cast("PreTrainedModel", model)


def set_base(model: PreTrainedModel, name: str, revision: str | None) -> None:
    """Set the base that the saved adapter will have: a folder, or a name on the Hub and its commit."""
    _config(model).base_model_name_or_path = name
    _config(model).revision = revision


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a model that are trained, by name: with an adapter, its own."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def state_without_base(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a model by name, without frozen weights."""
    frozen = _frozen(model)
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def load_state_without_base(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore what `state_without_base` returned. Raises ValueError if it is the state of another model."""
    of_model = model.state_dict()
    weights = {name: divided_like(value, of_model.get(name)) for name, value in state.items()}
    report = model.load_state_dict(weights, strict=False)
    if wrong := {*report.missing_keys, *report.unexpected_keys} - _frozen(model):
        raise ValueError(f"the state belongs to another model: {min(wrong)}")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


def on_same_base(model: Model) -> Model:
    """Return a copy of a model that has an adapter of its own, and shares the frozen weights."""
    shared: dict[int, Any] = {}
    for module in model.modules():
        tensors = [
            *module.parameters(recurse=False),
            *module.buffers(recurse=False),
            getattr(module, "quant_state", None),
        ]
        shared |= {
            id(tensor): tensor
            for tensor in tensors
            if tensor is not None and not getattr(tensor, "requires_grad", False)
        }
    return sharding_of(model).on_same_parts(model, shared)


def with_own_frozen(model: Model) -> Model:
    """Return a copy of a whole model that has frozen weights of its own, and shares the trained ones."""
    return copy.deepcopy(model, {id(weight): weight for weight in trained_weights(model).values()})


def trains_base(model: PreTrainedModel) -> bool:
    """Return whether an adapter also trains weights of its base, such as biases."""
    return any(NAME not in name.split(".") for name in trained_weights(model))


@torch.no_grad()
def changes_nothing(forward: Forward, token_ids: Tensor) -> bool:
    """Return whether the logits of `token_ids` [R, L] with the adapter are those without it, bit for bit.

    An adapter that also trains weights of the base changes them sooner or later.
    """
    if trains_base(forward.model):
        return False
    without = on_same_base(forward.model)
    switch(without, on=False)
    logits = forward.with_weights(
        lambda: tuple(model(input_ids=token_ids, use_cache=False).logits for model in (forward.model, without))
    )
    return torch.equal(*logits)


def switch(model: PreTrainedModel, *, on: bool) -> None:
    """Let a model that is not trained compute with its adapter, or without."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    for module in model.modules():
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
            module.enable_adapters(on)
    model.requires_grad_(False)


def _config(model: PreTrainedModel) -> "PeftConfig":
    config: PeftConfig = model.peft_config[NAME]  # type: ignore[attr-defined]
    return config


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Show no warning of PEFT: outdo checks what it attaches, saves and merges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
