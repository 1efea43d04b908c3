"""Inspect a model before it is loaded: where it is, whether its files are sound, how large it is.

Only JSON and the headers of safetensors and GGUF files are read. No pickle is opened and no code of the folder is run.
This module needs neither torch nor transformers, and takes a fraction of a second.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from outdo.models.config_sizes import sizes_of
from outdo.models.gguf_header import folder_of, is_gguf, read_header
from outdo.models.weight_headers import ADAPTER_WEIGHTS, Tensors, is_of_text, read_object, read_tensors, read_weights
from outdo.utils.errors import ModelError, did_you_mean
from outdo.utils.hub_names import is_local

ADAPTER_CONFIG = "adapter_config.json"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # each fits into float32, which outdo trains
WITHOUT_LOSS = {*DTYPES, "BOOL", "U8", "I16", "I32", "I64"}  # masks and positions are integers

IN_A_LAYER = re.compile(r"\.\d+\.")
"""What the name of a weight in a layer contains: `model.layers.0.mlp.up_proj.weight`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model, as a requirement on a folder."""

    name: str  # in messages
    endings: tuple[str, ...]  # of the names of such architectures in transformers
    expected: str  # in messages: which architectures are accepted


LANGUAGE_MODEL = Kind(
    "causal language model",
    ("ForCausalLM", "LMHeadModel"),
    "outdo trains ...ForCausalLM and ...LMHeadModel, and the text part of a ...ForConditionalGeneration with a vision "
    "or audio part",
)
WHOLE = "ForConditionalGeneration"
"""The end of the name of a model that reads images or sound as well; of an encoder and a decoder, too."""
REWARD_MODEL = Kind(
    "reward model", ("ForSequenceClassification",), "`outdo reward-model` makes a ...ForSequenceClassification of it"
)
EITHER = Kind(
    "language model or reward model",
    LANGUAGE_MODEL.endings + REWARD_MODEL.endings,
    f"{LANGUAGE_MODEL.expected}, and ...ForSequenceClassification as rewards",
)
IN_ITS_NAME = re.compile(f"({'|'.join(EITHER.endings)})$")
"""The end of an architecture's name, which tells its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is in `config.json` and in the headers of the weights. `None`: not there, or not on this machine yet.

    Of an adapter folder, these are the facts of its base model, and `adapter` is the folder.
    """

    name: str  # as given
    folder: Path | None  # None for a hub model that is not downloaded yet
    architecture: str | None  # for example Qwen3ForCausalLM
    model_type: str | None  # for example qwen3
    parameters: int | None  # numbers stored in the weight files; tied weights are stored, and counted, once
    dtype: str | None  # of most of them, as torch calls it: float32, bfloat16, ...
    layer_matrices: tuple[tuple[int, int], ...]  # rows and columns of the matrices in its layers
    hidden_size: int | None
    layers: int | None
    attention_layers: int | None  # those of them that keep keys and values
    heads: int | None  # attention heads of the queries
    kv_heads: int | None  # attention heads of keys and values
    head_dim: int | None
    vocab_size: int | None  # rows of the embedding
    kv_numbers: int | None  # keys and values that all layers keep of one token
    max_positions: int | None  # longest sequence, in tokens; None: unlimited, as in state-space models
    state_numbers: int = 0  # what the other layers keep of a sequence, however long it is
    normed_heads: bool = False  # whether attention normalises its queries and keys
    lean: bool = False  # whether its layers keep less for the backward pass, by `fused_modules`
    adapter: Path | None = None  # the folder of an adapter of this model
    dequantised: str | None = None  # of a GGUF file: the type of most of its weights, for example Q4_1
    other_parts: int = 0  # numbers stored of the parts of a model that read images or sound; they are not loaded


def inspect_folder(name: str | Path, kind: Kind = LANGUAGE_MODEL) -> ModelFacts:
    """Inspect a model without loading it: a folder, or a hub name `owner/name` (read if it was downloaded before).

    The folder may hold a whole model, or an adapter and the name of its base model. A GGUF file is a model as well.

    Raises `ModelError` with all problems, one per line: a folder that does not exist (with the nearest name that does),
    a missing or broken `config.json`, an architecture that is not of this `kind`, weights that are damaged, incomplete,
    quantised or stored as pickle, an index that names a file outside of the folder, a model that needs code of its own.
    """
    name = str(name)
    if not name.strip():
        raise ModelError("no model named: give a folder, or a hub name written owner/name")
    if not is_local(name):
        return _inspect_cached(name, kind)
    folder = Path(name).expanduser()
    if is_gguf(name) and os.path.isfile(folder):
        return _inspect_gguf(name, folder, kind)
    if not os.path.isdir(folder):
        raise ModelError(f"model {name}: {_why_not_a_folder(folder)}")
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").exists():
        return _inspect_adapter(name, folder, kind)
    _refuse_gguf_files(name, folder)
    problems: list[str] = []
    config = _read_config(folder, kind, problems)
    tensors = read_weights(folder, problems)
    facts = _facts(name, folder, config, tensors, problems)
    if problems:
        raise ModelError("\n".join(f"model {name}: {problem}" for problem in problems))
    return facts


def is_whole(config: Mapping[str, Any]) -> bool:
    """Return whether a model reads images or sound as well, by its configuration."""
    return any(isinstance(config.get(f"{part}_config"), dict) for part in ("text", "vision", "audio"))


def conversion_notes(facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence for the user if not all of a model is loaded, or not as it is stored."""
    if facts.dequantised:
        yield (
            f"model {facts.name}: its weights are dequantised from {facts.dequantised} to float32, once, into a folder "
            f"in {folder_of(Path(facts.name).expanduser()).parent}; what is saved is safetensors, not GGUF"
        )
    if facts.other_parts:
        yield (
            f"model {facts.name}: its text part is trained; the {facts.other_parts:,} weights of the parts that read "
            "images or sound are not loaded, and are copied into what is saved"
        )


def cached_snapshot(name: str) -> Path | None:
    """Return the folder of a model of the Hub, `owner/name` or `owner/name@revision`, if it is on this machine.

    The folder is named after the commit.
    """
    repository, _, revision = name.partition("@")
    cached = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    return Path(cached).parent if isinstance(cached, str) else None


def _inspect_cached(name: str, kind: Kind) -> ModelFacts:
    """Inspect a hub model's config if it is on this machine. Weights may be half downloaded: the loader checks them."""
    folder = cached_snapshot(name)
    if folder is None:
        return _facts(name, None, {}, {}, [])
    problems: list[str] = []
    config = _read_config(folder, kind, problems)
    missing: list[str] = []
    tensors = read_weights(folder, missing)
    facts = _facts(name, folder, config, {} if missing else tensors, problems)
    if problems:
        raise ModelError("\n".join(f"model {name}: {problem}" for problem in problems))
    return facts


def _refuse_gguf_files(name: str, folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if is_gguf(path))
    if files and not (folder / "config.json").exists():
        raise ModelError(f"model {name}: this folder holds no config.json, but GGUF files; name the file: {files[0]}")


def _inspect_gguf(name: str, file: Path, kind: Kind) -> ModelFacts:
    """Inspect a GGUF file by its header: the facts are those of the folder that is made of it when a run starts."""
    header, problems = read_header(file), list[str]()
    tensors = {name: ("F32", tensor.shape) for name, tensor in header.tensors.items()}
    problems.extend(_unsupported(header.config, kind))
    folder = folder_of(file)
    facts = _facts(name, folder if folder.is_dir() else None, header.config, tensors, problems)
    if problems:
        raise ModelError("\n".join(f"model {name}: {problem}" for problem in problems))
    return replace(facts, dequantised=header.stored)


def _inspect_adapter(name: str, folder: Path, kind: Kind) -> ModelFacts:
    """Inspect an adapter folder, as PEFT writes it, and the base model that it names.

    The adapter of a reward model holds its head; the base may be a language model.
    """
    problems: list[str] = []
    config = read_object(folder / ADAPTER_CONFIG, problems)
    base, scores = _base_named_in(config), config.get("task_type") == "SEQ_CLS"
    if scores and kind is LANGUAGE_MODEL:
        problems.append("an adapter of a reward model, which gives scores and generates no text")
    _check_adapter_weights(folder, problems)
    facts = _inspect_base(base, EITHER if scores else kind, problems)
    if problems or facts is None:
        raise ModelError("\n".join(f"model {name}: {problem}" for problem in problems))
    architecture = facts.architecture or ""
    kind_of_model = IN_ITS_NAME.sub(REWARD_MODEL.endings[0], architecture) if scores else architecture
    return replace(facts, adapter=folder, architecture=kind_of_model or None)


def _base_named_in(config: Mapping[str, Any]) -> Any:
    """Return the base of an adapter; if it is on the Hub, with the commit that the adapter was trained on."""
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if isinstance(base, str) and revision and "@" not in base and not is_local(base):
        base = f"{base}@{revision}"
    return base


def _inspect_base(base: Any, kind: Kind, problems: list[str]) -> ModelFacts | None:
    """Inspect the base model of an adapter; add to `problems` and return None if there is none."""
    if not isinstance(base, str) or not base:
        problems.append(f"{ADAPTER_CONFIG}: base_model_name_or_path should name the model that the adapter belongs to")
        return None
    try:
        facts = inspect_folder(base, kind)
    except ModelError as error:
        problems.extend(f"its base, named in {ADAPTER_CONFIG}: {line}" for line in str(error).splitlines())
        return None
    if facts.adapter:
        problems.append(f"its base {base} is an adapter as well; merge that one first: `outdo export --merge`")
    return facts


def _check_adapter_weights(folder: Path, problems: list[str]) -> None:
    if (folder / ADAPTER_WEIGHTS).is_file():
        read_tensors(folder / ADAPTER_WEIGHTS, problems)
    else:
        pickled = "; save the adapter as safetensors" if (folder / "adapter_model.bin").exists() else ""
        problems.append(f"no weights of the adapter: {ADAPTER_WEIGHTS} is missing{pickled}")


def _why_not_a_folder(path: Path) -> str:
    if os.path.exists(path):
        return "this is a file; give the folder that holds config.json and model.safetensors, or a .gguf file"
    if "\0" in str(path):
        return "the name contains a NUL character"
    while not os.path.isdir(path.parent):
        path = path.parent
    hint = did_you_mean(path.name, _subfolders(path.parent))
    return f"no folder {path.name!r} in {path.parent.absolute()}{hint} (a hub model is written owner/name)"


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def _read_config(folder: Path, kind: Kind, problems: list[str]) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        inner = sorted(path for name in ("config.json", ADAPTER_CONFIG) for path in _below(folder, name))
        hint = f"; did you mean {inner[-1].parent}?" if inner else ""
        problems.append(f"config.json is missing, so this is no model folder{hint}")
        return {}
    config = read_object(folder / "config.json", problems)
    if config:
        problems.extend(_unsupported(config, kind))
    return config


def _below(folder: Path, name: str) -> list[Path]:
    return [*folder.glob(f"*/{name}"), *folder.glob(f"checkpoints/*/{name}")]


def _unsupported(config: dict[str, Any], kind: Kind) -> Iterator[str]:
    architectures = _architectures(config)
    if not isinstance(config.get("model_type"), str):
        yield "config.json: model_type is missing, so the architecture is unknown"
    elif "auto_map" in config and not _transformers_has(config["model_type"]):
        yield (
            f"model type {config['model_type']!r} needs Python code that comes with the model (its auto_map) "
            "and that outdo never runs; use a model that transformers itself supports"
        )
    if config.get("architectures") and not architectures:
        yield "config.json: architectures should be a list of names"
    yield from _other_kind(config, architectures, kind)
    if config.get("quantization_config"):
        yield "the weights are quantised, and such weights cannot be trained; use the original ones"


def _other_kind(config: dict[str, Any], architectures: list[str], kind: Kind) -> Iterator[str]:
    """Yield a sentence if a model is not of the `kind` that is needed."""
    endings = (*kind.endings, *[WHOLE] * (is_whole(config) and LANGUAGE_MODEL.endings[0] in kind.endings))
    accepted = not architectures or any(architecture.endswith(endings) for architecture in architectures)
    if config.get("is_encoder_decoder") is True or not accepted:
        what = ", ".join(architectures) or config.get("model_type")
        yield f"{what} is no {kind.name}; {kind.expected}"


def _architectures(config: dict[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _transformers_has(model_type: str) -> bool:
    """Return whether the installed transformers has this architecture, without importing it."""
    spec = find_spec("transformers")
    places = (spec.submodule_search_locations or []) if spec else []
    module = model_type.removesuffix("_text").replace("-", "_")
    return module.isidentifier() and any((Path(root) / "models" / module).is_dir() for root in places)


def _facts(name: str, folder: Path | None, config: dict[str, Any], stored: Tensors, problems: list[str]) -> ModelFacts:
    text_config, tensors = config, stored
    if is_whole(config):
        text_config = config | config.get("text_config", {})
        tensors = {name: tensor for name, tensor in stored.items() if is_of_text(name, stored)}
    count: Counter[str] = Counter()
    for dtype, shape in tensors.values():
        count[dtype] += prod(shape)
    dtype = count.most_common(1)[0][0] if count else None
    problems.extend(_wrong_dtypes(count))
    return ModelFacts(
        name=name,
        folder=folder,
        architecture=next(iter(_architectures(config)), None),
        model_type=config.get("model_type"),
        parameters=count.total() if count else None,
        dtype=DTYPES.get(dtype, dtype) if dtype else None,
        layer_matrices=tuple(
            (shape[0], shape[1]) for name, (_, shape) in tensors.items() if len(shape) == 2 and IN_A_LAYER.search(name)
        ),
        normed_heads=_has_normed_heads(tensors),
        lean=_is_lean(text_config, tensors),
        other_parts=sum(prod(shape) for name, (_, shape) in stored.items() if name not in tensors),
        **sizes_of(text_config, problems),
    )


def _has_normed_heads(tensors: Tensors) -> bool:
    return any("q_norm" in name for name in tensors)


def _is_lean(config: dict[str, Any], tensors: Tensors) -> bool:
    return config.get("hidden_act") == "silu" and any("gate_proj" in name for name in tensors)


def _wrong_dtypes(count: Counter[str]) -> Iterator[str]:
    """Yield a sentence for each kind of stored numbers, counted in `count`, that cannot be weights in float32."""
    for dtype, elements in sorted(count.items()):
        share = f"{elements:,} of its {count.total():,} numbers are stored as {dtype}"
        if dtype == "F64":
            yield f"{share}, and float32 would round them; save it in float32: model.float().save_pretrained(folder)"
        elif dtype not in WITHOUT_LOSS or (dtype not in DTYPES and 2 * elements > count.total()):
            yield f"{share}: such weights are quantised and cannot be trained; use the original ones"
