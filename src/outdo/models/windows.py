"""The windows of attention that the configuration of a model names, and other numbers for them, for a comparison.

A few tokens do not reach beyond the window of a real model. With another number they do.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

NAMES = ("sliding_window", "attention_chunk_size")


def windows_of(model: PreTrainedModel) -> dict[str, int]:
    """Return the windows that the configuration of a model names, by their names."""
    config = model.config.get_text_config()
    return {name: getattr(config, name) for name in NAMES if getattr(config, name, None)}


@contextmanager
def windows_set_to(
    width: int | None, model: PreTrainedModel, names: Collection[str] = NAMES, *, in_modules: bool = False
) -> Iterator[list[str]]:
    """Give the windows in the configuration of a model another width during a `with` block; return their names.

    transformers reads it when it makes masks and caches. With `in_modules` those that modules keep are changed too.
    """
    config = model.config.get_text_config()
    named = {name: width for name, width in windows_of(model).items() if name in names}
    owners: list[tuple[Any, str]] = [(config, name) for name in named]
    if in_modules:
        owners += [
            (module, name) for module in model.modules() for name in named if vars(module).get(name) == named[name]
        ]
    with _set_to(width, owners):
        yield [*named]


@contextmanager
def floors_set_to(tokens: int, model: PreTrainedModel) -> Iterator[list[str]]:
    """Let the attention of Llama 4 scale its queries anew after so many tokens during a `with` block; return the names.

    It counts the tokens of the row, and padding on the left with them.
    """
    modules = [module for module in model.modules() if getattr(module, "attn_temperature_tuning", False)]
    with _set_to(tokens, [(module, "floor_scale") for module in modules]):
        yield ["floor_scale"] * bool(modules)


@contextmanager
def _set_to(number: int | None, attributes: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Set attributes of objects to a number during a `with` block."""
    before = [getattr(owner, name) for owner, name in attributes]
    for owner, name in attributes:
        setattr(owner, name, number)
    try:
        yield
    finally:
        for (owner, name), value in zip(attributes, before, strict=True):
            setattr(owner, name, value)
