"""The text part of a model that reads images or sound as well, such as `Qwen3_5ForConditionalGeneration`.

Given text alone, such a model is a causal language model. It is made without the modules that text does not reach: they
take no memory, are not read from its files and are not trained. The other modules keep the names that they have in the
whole model, so that an adapter fits the whole model. `OtherParts` make a saved folder whole again.
"""

import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from outdo.models.inspect_folder import is_whole
from outdo.models.weight_headers import INDEX, SINGLE_FILE, is_of_text, weight_files, write_index
from outdo.utils.errors import ModelError

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""The files of a model folder that say how images and sound become numbers."""


class TextPart:
    """Makes the text part of models of the class `kind`, as the `AutoModel` classes of transformers make models."""

    def __init__(self, kind: type[PreTrainedModel]) -> None:
        self.kind: Any = _without_other_parts(kind)

    def from_config(self, config: PretrainedConfig, **options: Any) -> Any:
        """Make a text part with random weights."""
        return self.kind._from_config(config, **options)

    def from_pretrained(self, folder: Path, **options: Any) -> Any:
        """Load the text part of the whole model in a folder."""
        return self.kind.from_pretrained(folder, **options)


def auto_class(auto: Any, config: PretrainedConfig) -> Any:
    """Return what makes the model of a configuration: `auto`, an `AutoModel` class, or the `TextPart` of a whole model.

    Raises `ModelError` if this transformers does not have the class of a whole model.
    """
    if not is_whole(config.to_dict()):
        return auto
    if auto is AutoModelForCausalLM:
        (name, *_) = config.architectures or ("",)
        if (kind := getattr(transformers, name, None)) is None:
            raise ModelError(f"transformers {transformers.__version__} has no {name}; a newer one may have it")
        return TextPart(kind)
    with torch.device("meta"):
        return TextPart(type(auto.from_config(copy.deepcopy(config))))


def left_out(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules of a whole model that its text part does not have."""
    return getattr(model, "left_out", ())


def with_public_class(model: PreTrainedModel) -> PreTrainedModel:
    """Give a text part the class of the whole model, by whose name it can be pickled; return the model."""
    if "left_out" in vars(model):
        (_, model.__class__, *_) = type(model).__mro__
    return model


def leave_out_as(model: nn.Module, made: nn.Module) -> None:
    """Leave out of `made`, a module of the same class as `model`, what `model` leaves out."""
    for name, part in model.named_modules():
        for child, value in part._modules.items():
            if value is None:
                setattr(made.get_submodule(name), child, None)


@cache
def _without_other_parts(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a class of models that leave out what text does not reach."""

    def make(model: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(model, *arguments, **options)
        body: nn.Module = model.base_model
        reached = {model.get_decoder(), model.get_output_embeddings()}
        children = [] if body in reached else body.named_children()  # Phi-4-multimodal's decoder reads images itself
        names = [name for name, part in children if not reached & {*part.modules()}]
        for name in names:
            setattr(body, name, None)
        prefix = "" if body is model else f"{model.base_model_prefix}."
        model.left_out = tuple(f"{prefix}{name}." for name in names)

    # transformers renames the stored weights of its own classes only, which it knows by their module.
    return type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__})


class OtherParts(NamedTuple):
    """What the folder of a whole model has beside its text part. It stays there if the folder is removed."""

    weights: dict[str, Tensor]  # by stored name; they are read from the disk when they are used
    files: dict[str, bytes]  # the `PROCESSOR_FILES` by name

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return those of the folder of a whole model."""
        files = weight_files(folder)
        weights: dict[str, Tensor] = {}
        for path in sorted({*files.values()}):
            with safe_open(path, framework="pt") as file:
                names = [name for name, holder in files.items() if holder == path and not is_of_text(name, files)]
                weights |= {name: file.get_tensor(name) for name in names}
        paths = [path for name in PROCESSOR_FILES if (path := folder / name).is_file()]
        return cls(weights, {path.name: path.read_bytes() for path in paths})

    def write(self, folder: Path) -> None:
        """Make the folder of a saved text part whole. The weights keep their bits and names, in a file of their own.

        Where replicas write the weights of the text part, the first one completes the folder by `write_index`.
        """
        save_file(self.weights, folder / "model-other-parts.safetensors", {"format": "pt"})
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if (folder / SINGLE_FILE).is_file():  # libraries would read this file alone
            (folder / SINGLE_FILE).rename(folder / "model-text-part.safetensors")
            write_index(folder)
        elif (folder / INDEX).is_file():
            write_index(folder)
