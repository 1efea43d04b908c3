"""Which tensors a model folder holds, by the headers and the index of its safetensors files, and its JSON files.

No pickle is opened. This module needs neither torch nor transformers.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from outdo.utils import atomic
from outdo.utils.pickle_files import PICKLE_SUFFIXES

SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

TEXT = {"language_model", "text_model"}
"""The names in transformers of the text part of a model that reads images or sound as well."""
HEADS = {"lm_head", "score"}
"""The names of the layers that read its hidden states: those of a language model, and those of a reward model."""
OTHERS = ("visual.", "vision", "audio", "multi_modal", "embed_vision", "embed_audio", "mtp.")
"""How the names of its other parts begin."""

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype, as safetensors calls it, and shape of each tensor by its name."""


def read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """Read the JSON object in `path`; add to `problems` and return an empty one if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path.name} should be a JSON object, not a {type(content).__name__}")
        return {}
    return content


def read_weights(folder: Path, problems: list[str]) -> Tensors:
    """Return dtype and shape of every stored tensor by its name, read from the headers alone."""
    if (folder / SINGLE_FILE).is_file():
        return read_tensors(folder / SINGLE_FILE, problems)
    if (folder / INDEX).is_file():
        return _read_shards(folder, problems)
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    pickles = [name for name in files if Path(name).suffix in PICKLE_SUFFIXES]
    if ADAPTER_WEIGHTS in files:
        problems.append("no weights but those of an adapter; an adapter folder has no config.json: remove it")
    elif pickles:
        problems.append(
            f"the weights are stored as pickle ({', '.join(pickles)}), which can run any code when opened, and was not "
            "opened; save them as safetensors: model.save_pretrained(folder)"
        )
    else:
        problems.append(f"no weights: {SINGLE_FILE} is missing")
    return {}


def _read_shards(folder: Path, problems: list[str]) -> Tensors:
    weight_map = read_object(folder / INDEX, problems).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        problems.append(f"{INDEX}: weight_map should name the file of every tensor")
        return {}
    tensors: Tensors = {}
    known = len(problems)
    for shard in sorted(set(weight_map.values())):
        if reason := _why_unsafe(folder, shard):
            problems.append(f"{INDEX} names {shard!r}, which {reason}")
        else:
            tensors |= read_tensors(folder / shard, problems)
    missing = sorted(name for name in weight_map if name not in tensors)
    if missing and len(problems) == known:
        problems.append(f"{INDEX} names {missing[0]} and {len(missing) - 1} more tensors that no file holds")
    return tensors


def _why_unsafe(folder: Path, shard: str) -> str | None:
    if shard in ("", ".", "..") or any(character in shard for character in "/\\\0"):
        return "leads out of the folder; it was not opened"
    if Path(shard).suffix != ".safetensors":
        return "is no safetensors file; it was not opened"
    if not (folder / shard).is_file():
        return "is missing; copy or download it again"
    return None


def weight_files(folder: Path) -> dict[str, Path]:
    """Return the file of every stored tensor of a sound model folder, by its name."""
    if not (folder / SINGLE_FILE).is_file():
        return {name: folder / shard for name, shard in read_object(folder / INDEX, [])["weight_map"].items()}
    return dict.fromkeys(read_tensors(folder / SINGLE_FILE, []), folder / SINGLE_FILE)


def write_index(folder: Path) -> None:
    """Write the index of a model whose weights are in several files, `model-00001-of-00002.safetensors` and so on.

    A folder without such files, as that of an adapter, gets none.
    """
    weight_map: dict[str, str] = {}
    size = 0
    for path in sorted(folder.glob("model-*.safetensors")):
        weight_map |= dict.fromkeys(read_tensors(path, []), path.name)
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")  # bytes of the JSON that follows
        size += path.stat().st_size - 8 - header
    if weight_map:
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        atomic.write_file(folder / INDEX, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode())


def is_of_text(name: str, names: Iterable[str]) -> bool:
    """Return whether a stored tensor is of the text part of a model that reads images or sound; `names` are all of it.

    Where no name says which part is text (Qwen2-VL), those of the others begin with what they read.
    """
    if not all(TEXT.isdisjoint(other.split(".")) for other in names):
        return not (TEXT | HEADS).isdisjoint(name.split("."))
    return not name.removeprefix("model.").startswith(OTHERS)


def read_tensors(path: Path, problems: list[str]) -> Tensors:
    try:  # safetensors checks lengths, offsets, shapes and JSON against the size of the file
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        size = os.path.getsize(path)
        problems.append(f"{path.name} ({size:,} bytes) is damaged: {error}; copy or download it again")
        return {}
