"""Where the weights of a model are: in this process, or, divided, a part of each weight in every replica."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Copied = TypeVar("Copied", bound=nn.Module)


class Sharding:
    """The weights of a model that this process holds alone.

    `outdo.extras.replicas` overrides these methods, and gives a model that it divides an object of its own as the
    attribute `sharding`.
    """

    is_divided = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.device: torch.device = model.device
        """Where the model computes; the parts of a divided one may be in main memory."""

    def __call__(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Call `compute`, which runs the model, with its weights; also in its backward pass.

        A divided model gathers them layer by layer, and all replicas have to do so equally often.
        """
        return compute()

    def gathered(self) -> AbstractContextManager[None]:
        """Return a context in which this process holds all weights, and may run the model as often as it likes."""
        return nullcontext()

    def whole(self, model: Copied) -> Copied:
        """Return the model as one that is not divided, with the weights that are gathered; it has none afterwards."""
        return model

    def copied(self, model: PreTrainedModel, head: nn.Module | None = None) -> PreTrainedModel:
        """Return a copy of `model`, all or a part of this one; a divided one is divided with `head`, as this one is."""
        return copy.deepcopy(model)

    def on_same_parts(self, model: Copied, shared: dict[int, Any]) -> Copied:
        """Return a deep copy of `model`, all or a part of the model, for which the same weights are gathered.

        `shared` has what is not copied, by id, as the second argument of `copy.deepcopy`.
        """
        return copy.deepcopy(model, shared)


def sharding_of(model: Any) -> Sharding:
    """Return where the weights of a model are."""
    return getattr(model, "sharding", None) or Sharding(model)
