"""Replace the `forward` of modules for a while."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def wrapped_forwards(modules: Sequence[nn.Module], wrap: Callable[[nn.Module], Callable[..., Any]]) -> Iterator[None]:
    """Replace the `forward` of modules by a wrapped one during a `with` block."""
    before = [vars(module).get("forward") for module in modules]
    for module in modules:
        module.forward = wrap(module)
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward
