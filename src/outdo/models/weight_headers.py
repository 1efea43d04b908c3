"""Which tensors a model folder holds, by the headers of its safetensors files, and its JSON files.

No pickle is opened. This module needs neither torch nor transformers.
"""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from outdo.utils.pickle_files import PICKLE_SUFFIXES

SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

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


def read_tensors(path: Path, problems: list[str]) -> Tensors:
    try:  # safetensors checks lengths, offsets, shapes and JSON against the size of the file
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        size = os.path.getsize(path)
        problems.append(f"{path.name} ({size:,} bytes) is damaged: {error}; copy or download it again")
        return {}
