"""The check of the plain tensors from which `Batch.of` makes a batch."""

import torch
from torch import Tensor

from outdo.utils.errors import UserError

SHAPES = {"advantages": ("[B, T]", "[B]"), "group": ("[B]",), "rewards": ("[B]",)}
"""The shapes of arguments of `Batch.of` that are not [B, T]."""


def check_tensors(mask: Tensor, **tensors: Tensor | None) -> None:
    """Raise `UserError` with one sentence for each argument of `Batch.of` that has a wrong shape or dtype."""
    if mask.dim() != 2:
        raise UserError([f"Batch.of: mask has shape {list(mask.shape)}, expected [B, T]"])
    sizes = {"[B, T]": list(mask.shape), "[B]": [len(mask)]}
    wrong = _wrong_dtype("mask", mask, "bool")
    for name, value in tensors.items():
        if value is None:
            continue
        allowed = SHAPES.get(name, ("[B, T]",))
        if list(value.shape) not in [sizes[shape] for shape in allowed]:
            wanted = " or ".join(f"{shape} = {sizes[shape]}" for shape in allowed)
            wrong.append(f"{name} has shape {list(value.shape)}, expected {wanted}")
        wrong += _wrong_dtype(name, value, "int" if name in ("token_ids", "group") else "float")
    wrong = wrong or _scattered(tensors.get("group"))
    if wrong:
        raise UserError([f"Batch.of: {sentence}" for sentence in wrong])


def _scattered(group: Tensor | None) -> list[str]:
    if group is None or len(group.unique()) == len(group.unique_consecutive()):
        return []
    return ["the rows of a group must be neighbours in `group`"]


def _wrong_dtype(name: str, value: Tensor, expected: str) -> list[str]:
    kind = "bool" if value.dtype == torch.bool else "float" if value.dtype.is_floating_point else "int"
    return [] if kind == expected else [f"{name} has dtype {str(value.dtype).removeprefix('torch.')}, not {expected}"]
