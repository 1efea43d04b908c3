"""The check of shapes and dtypes that runs in tests: `Float[Tensor, "B T"]` in a signature is checked at every call."""

import functools
import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin

import jaxtyping
import torch
from beartype.door import is_bearable
from jaxtyping import AbstractArray, install_import_hook

one_call = jaxtyping.jaxtyped  # as a context: within it, each letter has one size


def install() -> None:
    """Check the tensors of every function and dataclass of the packages below. Call it before they are imported."""
    install_import_hook(["outdo.algorithms", "outdo.types"], "shape_checks.check")
    # jaxtyping's own decorator compiles two functions for each function that it decorates, at every call of the outer
    # one where they are nested. The tests of the algorithms would take five times as long.
    jaxtyping.jaxtyped = lambda typechecker: typechecker


def check(definition: Any) -> Any:
    """Return the function, or the dataclass, with a check of its tensors; other arguments are its own affair."""
    if inspect.isclass(definition):
        if "__dataclass_fields__" in vars(definition):
            setattr(definition, "__init__", check(definition.__init__))  # noqa: B010
        return definition
    if isinstance(definition, property):
        return property(check(definition.fget))
    if isinstance(definition, classmethod):
        return classmethod(check(definition.__func__))
    hints = {name: hint for name, hint in definition.__annotations__.items() if _is_tensor(hint)}
    return _checked(definition, hints) if hints else definition


_right: set[tuple[Any, ...]] = set()
"""The shapes and dtypes that were right in an earlier call of a function: a check takes as long as a small loss."""


def _checked(function: Callable[..., Any], hints: dict[str, Any]) -> Callable[..., Any]:
    code = function.__code__

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        values = {
            name: value
            for name, value in (*zip(code.co_varnames, args, strict=False), *kwargs.items())
            if name in hints
        }
        _check(function, values, hints)
        result = function(*args, **kwargs)
        if "return" in hints:
            _check(function, values | {"return": result}, hints)
        return result

    return checked


def _check(function: Callable[..., Any], values: dict[str, Any], hints: dict[str, Any]) -> None:
    key = (function.__code__, *((name, *_kind(value)) for name, value in values.items()))
    if key not in _right:
        with one_call("context"):
            for name, value in values.items():
                _expect(function, name, value, hints)
        _right.add(key)


def _kind(value: Any) -> tuple[Any, ...]:
    return (value.dtype, value.shape) if isinstance(value, torch.Tensor) else (type(value),)


def _expect(function: Callable[..., Any], name: str, value: Any, hints: dict[str, Any]) -> None:
    if not is_bearable(value, hints[name]):
        found = f"{value.dtype} {list(value.shape)}" if hasattr(value, "shape") else repr(value)
        raise TypeError(f"{function.__module__}.{function.__qualname__}: {name} is {found}, expected {hints[name]}")


def _is_tensor(hint: Any) -> bool:
    """Whether a hint is a tensor with a shape, or a choice between such a tensor and something else."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return any(_is_tensor(each) for each in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, AbstractArray)
