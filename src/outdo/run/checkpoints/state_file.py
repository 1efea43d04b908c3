"""Convert a training state to JSON and tensors, and back, without pickle.

`pack` splits nested mappings and sequences of plain values and tensors into a tree for JSON and the tensors by name.
`unpack` is the inverse. Three things that JSON cannot hold are written as an object whose only or first key begins
with a dollar sign:

- `{"$tensor": name}`: the tensor of that name; with `dtype` and `shape` if safetensors has no such dtype, and the
  bytes are stored instead;
- `{"$float": "7ff8000000000000"}`: the IEEE 754 bits of an infinity or NaN;
- `{"$pairs": [[key, value], ...]}`: a mapping whose keys are not all plain text, such as an optimiser's.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outdo.utils import sharded_tensors
from outdo.utils.errors import CheckpointError
from outdo.utils.sharded_tensors import is_sharded, own_part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

NATIVE = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool}
    | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8}
)
"""The dtypes that every supported version of safetensors stores. All others are stored as bytes."""


def pack(state: Mapping[Any, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Split `state` into a tree for JSON and contiguous CPU tensors that share no memory, by name.

    A state may hold mappings with `str` and `int` keys, lists, tuples, `str`, `int`, `float`, `bool`, `None`, and dense
    tensors of every dtype. `unpack` returns the same, bit for bit, except that a tuple becomes a list, a subclass its
    plain type (`OrderedDict` a `dict`, `Parameter` a tensor without gradient), that tensors are on the CPU, and that
    two tensors that shared memory no longer do.

    A tensor of which this process holds a part is left as it is: see `outdo.utils.sharded_tensors.share_of`.

    Raises: CheckpointError naming the place of a value that is none of these.
    """
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, (), tensors)
    in_main_memory = {name: tensor if is_sharded(tensor) else tensor.cpu() for name, tensor in tensors.items()}
    return tree, _each_in_its_own_memory(in_main_memory)


def state_bytes(state: Mapping[Any, Any]) -> int:
    """Return the bytes of the tensors of `state`; of a divided one, those of the part that this process holds."""

    def tensors(value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping | list | tuple):
            for item in value.values() if isinstance(value, Mapping) else value:
                yield from tensors(item)

    return sum(own_part(tensor.detach()).nbytes for tensor in tensors(state))


def copied(state: Mapping[Any, Any], into: dict[str, Tensor], mesh: "DeviceMesh | None" = None) -> Any:
    """Return a copy of `state`, its tensors in main memory, as `unpack` would return it.

    The memory of the tensors in `into`, those of an earlier copy, is used again; new ones are added to it. Parts of
    divided tensors are exchanged over `mesh`: see `sharded_tensors.copied`.
    """
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, (), tensors)
    for name in [name for name in into if name not in tensors]:
        del into[name]
    for name, tensor in tensors.items():
        earlier = into.get(name)
        if earlier is not None and (earlier.shape, earlier.dtype) == (tensor.shape, tensor.dtype):
            own_part(earlier).copy_(own_part(tensor))
        else:
            into[name] = sharded_tensors.copied(tensor, mesh)
    return unpack(tree, into)


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the state that `pack` has split.

    Raises: CheckpointError if the tree is not one that `pack` writes, or a tensor that it names is missing.
    """
    match tree:
        case list():
            return [unpack(item, tensors) for item in tree]
        case dict() if any(key.startswith("$") for key in tree):
            return _unpack_marked(tree, tensors)
        case dict():
            return {key: unpack(item, tensors) for key, item in tree.items()}
    return tree


def _unpack_marked(marked: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    match marked:
        case {"$tensor": str(name), **form}:
            if name not in tensors:
                raise CheckpointError(f"the tensor {name!r} of the training state is missing")
            return _from_bytes(name, tensors[name], form) if form else tensors[name]
        case {"$float": str(bits)}:
            return _float_of(bits)
        case {"$pairs": list(pairs)} if all(_is_pair(pair) for pair in pairs):
            return {key: unpack(item, tensors) for key, item in pairs}
    raise CheckpointError(f"the training state holds an object that outdo does not write: {str(marked)[:80]}")


def _pack(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        case list() | tuple():
            return [_pack(item, (*path, str(index)), tensors) for index, item in enumerate(value)]
        case Tensor():
            return _pack_tensor(value, path, tensors)
        case Mapping():
            return _pack_mapping(value, path, tensors)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise CheckpointError(
        f"{_place(path)} is a {kind}, which cannot be saved; expected tensors, texts, numbers, True, False, None, "
        "and lists and dicts of them"
    )


def _pack_mapping(mapping: Mapping[Any, Any], path: tuple[str, ...], tensors: dict[str, Tensor]) -> dict[str, Any]:
    for key in mapping:
        if not isinstance(key, str | int):
            raise CheckpointError(f"{_place(path)} has the key {key!r}; a state's keys are texts or whole numbers")
    packed = {key: _pack(item, (*path, str(key)), tensors) for key, item in mapping.items()}
    is_plain = all(isinstance(key, str) and not key.startswith("$") for key in packed)
    return packed if is_plain else {"$pairs": [[key, item] for key, item in packed.items()]}


def _pack_tensor(tensor: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise CheckpointError(f"{_place(path)} is a sparse, quantised or meta tensor; only dense ones can be saved")
    marker: dict[str, Any] = {"$tensor": _free_name(path, tensors)}
    if is_sharded(tensor):
        tensors[marker["$tensor"]] = tensor.detach()
        return marker
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype not in NATIVE:
        marker |= {"dtype": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape)}
        plain = plain.reshape(-1).view(torch.uint8)
    tensors[marker["$tensor"]] = plain
    return marker


def _each_in_its_own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, which safetensors refuses."""
    taken: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if is_sharded(tensor):
            apart[name] = tensor
            continue
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    return apart


def _free_name(path: tuple[str, ...], tensors: Mapping[str, Tensor]) -> str:
    """Return a readable name that no tensor has yet: `{1: a, "1": b}` and a slash in a key would otherwise collide."""
    name = "/".join(path).encode("utf-8", "backslashreplace").decode()
    while name in tensors or name == "__metadata__":  # reserved by safetensors
        name += "'"
    return name


def _from_bytes(name: str, content: Tensor, form: Mapping[str, Any]) -> Tensor:
    dtype, shape = getattr(torch, str(form.get("dtype")), None), form.get("shape")
    if not isinstance(dtype, torch.dtype) or not isinstance(shape, list) or content.dtype != torch.uint8:
        raise CheckpointError(f"the tensor {name!r} of the training state has no usable dtype and shape")
    try:
        return content.view(dtype).reshape(shape)
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(f"the tensor {name!r} of the training state does not fit its shape: {error}") from error


def _float_of(bits: str) -> float:
    try:
        return struct.unpack(">d", bytes.fromhex(bits))[0]
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"the training state holds {bits[:80]!r} instead of the bits of a number") from error


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int)


def _place(path: tuple[str, ...]) -> str:
    return f"state[{']['.join(path)}]" if path else "the state"
