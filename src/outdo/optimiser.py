"""One optimiser step: gradient clipped, learning rate from a schedule, and nothing let through that is not finite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from outdo.errors import NonFiniteError

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSettings:
    """AdamW and its learning rate. `warmup` and `total` count optimiser steps, not training steps."""

    lr: float = 1e-6
    warmup: int = 0  # the learning rate rises linearly over so many steps
    schedule: Schedule = "constant"  # after that: stays, or falls to 0 at step `total`
    total: int | None = None  # needed by a schedule that falls
    weight_decay: float = 0.0  # of matrices only; norms and biases are left alone
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float = 1.0  # of the gradient of all weights together
    patience: int = 3  # steps in a row that may be refused before the run stops

    def __post_init__(self) -> None:
        if self.schedule != "constant" and self.total is None:
            raise ValueError(f'schedule "{self.schedule}" falls to 0 at step `total`, which is not given')


def learning_rate(settings: OptimiserSettings, step: int) -> float:
    """The learning rate of optimiser step `step` = 0, 1, 2, ..."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.total is None or settings.schedule == "constant":
        return settings.lr
    done = min(1.0, (step - settings.warmup) / max(1, settings.total - settings.warmup))
    return settings.lr * ((1 - done) if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


class Optimiser:
    """AdamW on a model's trainable weights. `steps` counts those taken; refused ones are counted apart."""

    def __init__(self, model: nn.Module, settings: OptimiserSettings) -> None:
        self.settings = settings
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        matrices = [weight for weight in self.weights.values() if weight.dim() > 1]
        others = [weight for weight in self.weights.values() if weight.dim() <= 1]
        self.adam = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=next(iter(self.weights.values())).device.type in ("cpu", "cuda"),
        )
        self.steps = 0
        self.refused_in_a_row = 0

    def step(self, loss: float) -> dict[str, float]:
        """Take the step that the gradients ask for, and clear them.

        If the loss or the gradient is not finite, the weights and moments stay as they are, to the bit; after
        `patience` such steps in a row, `NonFiniteError`. A gradient of exactly zero moves nothing either: momentum
        alone has no say.
        """
        norm = float(nn.utils.clip_grad_norm_(self.weights.values(), self.settings.clip_norm))
        finite = math.isfinite(loss) and math.isfinite(norm)
        lr = learning_rate(self.settings, self.steps)
        if finite and norm > 0:
            for group in self.adam.param_groups:
                group["lr"] = lr
            self.adam.step()
            self.steps += 1
        self.adam.zero_grad()
        self.refused_in_a_row = 0 if finite else self.refused_in_a_row + 1
        if self.refused_in_a_row >= self.settings.patience:
            raise NonFiniteError(
                f"{self.refused_in_a_row} updates in a row had a loss ({loss}) or a gradient norm ({norm}) that is not "
                "finite; none of them touched the weights. Look at the rewards and the learning rate, "
                f"{self.settings.lr:g}."
            )
        return {
            "grad_norm": norm,
            "learning_rate": lr,
            "updates/refused": 0.0 if finite else 1.0,
            "updates/empty": float(finite and norm == 0),
        }

    def state(self) -> dict[str, Any]:
        """Counters and, by weight name, Adam's moments."""
        moments = {name: dict(self.adam.state[weight]) for name, weight in self.weights.items()}
        return {"steps": self.steps, "refused_in_a_row": self.refused_in_a_row, "moments": moments}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        if set(state["moments"]) != set(self.weights):
            raise ValueError("the optimiser's state is that of another model")
        self.steps, self.refused_in_a_row = state["steps"], state["refused_in_a_row"]
        for name, weight in self.weights.items():
            moments: Mapping[str, Tensor] = state["moments"][name]
            self.adam.state[weight] = {key: value.to(weight.device).clone() for key, value in moments.items()}
