"""Tensors of which every replica holds a part (`DTensor` of torch.distributed), and ordinary ones, treated alike."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def is_sharded(value: Any) -> bool:
    """Return whether this process holds only a part of a tensor."""
    return hasattr(value, "full_tensor")


def whole(value: Any, *, keep: bool = True) -> Any:
    """Return a tensor, or a state of nested mappings and sequences, with every tensor whole.

    All replicas have to call it at the same time: they exchange their parts. One that only passes on its own does not
    `keep` the result, and gets None in its place.
    """
    match value:
        case Mapping():
            return {key: whole(item, keep=keep) for key, item in value.items()}
        case list() | tuple():
            return [whole(item, keep=keep) for item in value]
    if not is_sharded(value):
        return value
    tensor = value.full_tensor()
    return tensor if keep else None


def share_of(
    tensors: Mapping[str, Tensor], rank: int, count: int, *, unit: Callable[[str], str] = str
) -> dict[str, Tensor]:
    """Return the tensors that this process, number `rank` of `count`, writes to a disk: whole, in main memory.

    Each tensor has one writer, that of its `unit` (by default each tensor is one), and all write about as many bytes.
    All processes have to call it at the same time with the same names: they exchange their parts tensor by tensor, and
    none holds more than its share and one tensor.
    """
    if count == 1:
        return dict(tensors)
    sizes: Counter[str] = Counter()
    for name, tensor in tensors.items():
        sizes[unit(name)] += tensor.numel() * tensor.element_size()
    writer, load = dict[str, int](), [0] * count
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        writer[name] = load.index(min(load))
        load[writer[name]] += size
    share: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        mine = writer[unit(name)] == rank
        gathered = whole(tensor.detach(), keep=mine)
        if mine:
            share[name] = gathered.cpu().contiguous()
    return share


def copied(value: Tensor, mesh: "DeviceMesh | None" = None) -> Tensor:
    """Return a copy of a tensor in main memory; of a divided one, a copy of the part that this process holds.

    The parts of such copies are exchanged over `mesh` (`whole`), and not over that of the tensor.
    """
    if not is_sharded(value):
        return value.to("cpu", copy=True)
    from torch.distributed.tensor import DTensor

    assert isinstance(value, DTensor), "a tensor that is divided"
    assert mesh is not None, "parts are exchanged over a mesh"
    part = value.to_local().to("cpu", copy=True)
    return DTensor.from_local(part, mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride())


def own_part(value: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: all of an ordinary one."""
    return value.to_local() if is_sharded(value) else value  # type: ignore[operator]


def divided_like(value: Any, like: Any) -> Any:
    """Return a whole tensor divided as `like` is, if that has the same shape and is divided. Nothing is exchanged."""
    if not is_sharded(like) or not isinstance(value, Tensor) or is_sharded(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    with torch.no_grad():
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
