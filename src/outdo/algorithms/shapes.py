"""The shapes that pieces of an objective return, and the check of what a user's own piece returns.

Annotations such as `Float[Tensor, "B T"]` state dtype and shape of every tensor in `outdo.algorithms`. They cost
nothing in normal use. outdo's tests check them at every call (`tests/conftest.py`).
"""

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from outdo.types import Batch
from outdo.utils.errors import UserError

Factor = Float[Tensor, "B T"] | Float[Tensor, "B 1"] | Float[Tensor, ""] | float
"""A number for each token, for each sequence, or for all of them."""

Correction = Callable[[Float[Tensor, "B T"], Batch], Factor]
"""`(logprobs, batch) -> c`, where the engine is not exactly the policy: see `algorithms/objectives/corrections.py`."""

TOKENS = ("B T",)
FACTOR = ("B T", "B 1", "")
"""Shapes for `check_shape`: of a tensor with a number for each token, and of a `Factor`. An empty text is a number."""

Value = TypeVar("Value")


def check_shape(value: Value, expected: tuple[str, ...], kind: str, piece: object, sizes: Mapping[str, int]) -> Value:
    """Return `value` if its shape is one of `expected`, such as "B T"; `sizes` has the size of each letter.

    Raises `UserError` with `kind` and name of the piece, the shape that it returned and the shapes that it may return.
    """
    if isinstance(value, Tensor):
        shape = tuple(value.shape)
        if any(shape == _sizes(form, sizes) for form in expected):
            return value
        described = f"shape {_described(shape, sizes)}"
    else:
        if isinstance(value, int | float) and "" in expected:
            return value
        described = f"a value of type {type(value).__name__}"
    *others, last = [
        f"[{', '.join(form.split())}] = {list(_sizes(form, sizes))}" if form else "a number" for form in expected
    ]
    wanted = f"{', '.join(others)} or {last}" if others else last
    raise UserError([f"the {kind} {piece_name(piece)} returned {described}, expected {wanted}"])


def piece_name(piece: object) -> str:
    """Return the name of a piece with its file, such as "my_pieces.cubic"."""
    while isinstance(piece, functools.partial):  # options filled in
        piece = piece.func
    definition = piece if hasattr(piece, "__qualname__") else type(piece)
    module = str(definition.__module__)
    file = getattr(sys.modules.get(module), "__file__", None)
    name = str(getattr(definition, "__qualname__", definition)).replace(".<locals>", "")
    return f"{Path(file).stem if file else module}.{name}"


def _sizes(shape: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[letter] if letter in sizes else int(letter) for letter in shape.split())


def _described(shape: tuple[int, ...], sizes: Mapping[str, int]) -> str:
    """Return for example "[B] = [16]", or "[7]" where no size is that of a letter."""
    letters: list[str] = []
    for dimension, size in enumerate(shape):
        among = list(sizes) if dimension == 0 else list(sizes)[::-1]  # where B and T are equal
        letters.append(next((letter for letter in among if sizes[letter] == size), str(size)))
    numbers = str(list(shape))
    names = f"[{', '.join(letters)}]"
    return numbers if names == numbers else f"{names} = {numbers}"
