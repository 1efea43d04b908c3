"""What a model reads beside tokens, such as the pixels of pictures: tensors by the names of the model's arguments."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
"""Of one prompt. The first dimension of a tensor counts what the prompt has: one number, two pictures, 480 patches.

The tensors of rows are joined, and the model has to find what belongs to which row: by its tokens, as placeholders of
pictures, or by the order. A prompt may have nothing of an input, a first dimension of 0, only if it goes by the tokens.
"""

MADE_BY_OUTDO = frozenset({"input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "use_cache"})
"""The arguments of a model that no prompt can bring."""


def check_inputs(inputs: Inputs, where: str) -> None:
    """Raise `ValueError`, which begins with `where`, unless each input is a tensor that rows can be joined along."""
    if not isinstance(inputs, Mapping):
        raise ValueError(f"{where}: expected its inputs as a table of tensors, found {type(inputs).__name__}")
    for name, value in inputs.items():
        if name in MADE_BY_OUTDO:
            raise ValueError(f"{where}: outdo makes {name} of the tokens; leave it out of the inputs")
        if not isinstance(value, Tensor) or not value.dim():
            kind = "a tensor without dimensions" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{where}: the input {name} is {kind}, expected a tensor with one dimension or more")


def same_inputs(first: Inputs, second: Inputs) -> bool:
    """Return whether two prompts bring the same inputs, bit for bit."""
    return first is second or (
        first.keys() == second.keys()
        and all(value.dtype == second[name].dtype and value.equal(second[name]) for name, value in first.items())
    )


def inputs_of_rows(rows: Sequence[Inputs]) -> tuple[Inputs, ...]:
    """Return the inputs of the rows of a batch; () if no row has any.

    Raises `ValueError` unless all rows have the same names: a model would take the inputs of one row for another's.
    """
    names = sorted({name for inputs in rows for name in inputs})
    for number, inputs in enumerate(rows):
        if missing := [name for name in names if name not in inputs]:
            raise ValueError(
                f"row {number} has no input {missing[0]}, which other rows of the batch have; a prompt without it "
                "brings a tensor whose first dimension is 0"
            )
    return tuple(rows) if names else ()


def joined_inputs(rows: Sequence[Inputs]) -> dict[str, Tensor]:
    """Join the inputs of rows along their first dimension, in the order of the rows.

    A name is left out if no row has anything of it: then the model computes text alone.
    """
    joined = {name: torch.cat([inputs[name] for inputs in rows]) for name in (rows[0] if rows else ())}
    return {name: value for name, value in joined.items() if len(value)}
