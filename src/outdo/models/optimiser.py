"""One optimiser step: clip the gradient, set the learning rate by a schedule, and refuse what is not finite.

An algorithm is a function from the trained weights to a `torch.optim.Optimizer`: `adamw`, `adafactor`, `adamw8bit`,
`sgd`, `polyak`, or one of your own. Its options are keyword-only. `Optimiser` does the same with each of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from outdo.models.schedules import Schedule, constant
from outdo.utils.errors import ModelError, NonFiniteError, UserError
from outdo.utils.packages import not_imported
from outdo.utils.sharded_tensors import divided_like, is_sharded, whole

ROUNDING = 1e-4
"""A loss above minus this is 0: sums of float32 numbers are not more precise."""

Algorithm = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def adamw(
    weights: Sequence[nn.Parameter],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101): two moments, 8 bytes a weight.

    `betas` decay the means of gradients and of squared gradients; `eps` is added to the root of the latter. As in the
    other algorithms, `weight_decay` is decoupled and applies to matrices only.
    """
    fused = weights[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(_decayed(weights, weight_decay), betas=_pair(betas), eps=eps, fused=fused)


def adafactor(
    weights: Sequence[nn.Parameter], *, beta2_decay: float = -0.8, d: float = 1.0, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Adafactor (arXiv 1804.04235): one mean of squared gradients for each row and column of a matrix, no momentum.

    The learning rate is relative: a step is `lr` times the root mean square of the weights that it changes. `d` bounds
    the root mean square of the update; old squared gradients decay with the step to the power of `beta2_decay`. Raises
    `UserError` for weights that are divided among replicas.
    """
    _check_whole(weights, "adafactor")
    return torch.optim.Adafactor(_decayed(weights, weight_decay), beta2_decay=beta2_decay, d=d)


def adamw8bit(
    weights: Sequence[nn.Parameter],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW with both moments in 8 bits (arXiv 2110.02861): 2 bytes a weight; in float32 for tensors under 4,096.

    Raises `UserError` if bitsandbytes is not installed, or for weights that are divided among replicas.
    """
    _check_whole(weights, "adamw8bit")
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        missing = 'adamw8bit needs bitsandbytes: pip install "outdo[8bit]"'
        raise UserError([not_imported(error, "bitsandbytes", missing, ("8bit",))]) from None
    return AdamW8bit(_decayed(weights, weight_decay), betas=_pair(betas), eps=eps)


def sgd(weights: Sequence[nn.Parameter], *, momentum: float = 0.0, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Stochastic gradient descent: a step is as long as the gradient, times `lr`. With `momentum` 4 bytes a weight.

    Raises ValueError for a `momentum` that is not from 0 to below 1.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum: expected a number from 0 to below 1, found {momentum}")
    return DecoupledSGD(_decayed(weights, weight_decay), momentum)


class DecoupledSGD(torch.optim.SGD):
    """SGD whose weight decay is not part of the momentum: SGDW (arXiv 1711.05101)."""

    def __init__(self, groups: Sequence[Mapping[str, Any]], momentum: float) -> None:
        with_decay = [{"params": group["params"], "decay": group["weight_decay"]} for group in groups]
        super().__init__(with_decay, momentum=momentum)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Let the weights that have a gradient decay, then move them."""
        for group in self.param_groups:
            for weight in group["params"]:
                if group["decay"] and weight.grad is not None:
                    weight.mul_(1 - group["lr"] * group["decay"])
        return super().step(closure)


def polyak(weights: Sequence[nn.Parameter], *, share: float = 1.0) -> torch.optim.Optimizer:
    """Gradient descent with the stochastic Polyak step (SPS_max, arXiv 2002.10542), for a loss whose minimum is 0.

    The step is share · loss / ‖gradient‖² times the gradient: with `share` 1 a linear loss would be 0 after it. `lr` is
    the largest factor. The paper's c is 1 / `share`. The step does not depend on the scale of the loss. Raises
    ValueError for a `share` that is not above 0.
    """
    if not share > 0:
        raise ValueError(f"share must be above 0, not {share}")
    return Polyak(weights, share)


class Polyak(torch.optim.Optimizer):
    """Gradient descent whose `step` takes the loss from its closure, and has no state."""

    def __init__(self, weights: Sequence[nn.Parameter], share: float) -> None:
        super().__init__(list(weights), {"lr": 1.0, "share": share})

    @torch.no_grad()
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        """Move along the gradients. Raises `ValueError` for a loss below 0, whose minimum is unknown."""
        loss = closure()
        if loss < -ROUNDING:
            raise ValueError(f"polyak needs a loss whose minimum is 0, as that of target is; this one is {loss:g}")
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            square = sum(float(whole(weight.grad.square().sum())) for weight in weights)  # of all replicas' parts
            factor = min(group["lr"], group["share"] * max(0.0, loss) / square) if square else 0.0
            for weight in weights:
                weight.add_(weight.grad, alpha=-factor)
        return loss


def _check_whole(weights: Sequence[nn.Parameter], name: str) -> None:
    """Refuse weights of which each replica holds a part: torch has not all operators of the algorithm for them."""
    if any(map(is_sharded, weights)):
        raise UserError(
            [
                f"optim.algorithm: {name} does not work on weights that are divided (cluster.shard = true); "
                "adamw, sgd and polyak do, and an adapter is not divided"
            ]
        )


def _decayed(weights: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Split weights into matrices, which decay, and norms and biases, which do not."""
    matrices = [weight for weight in weights if weight.dim() > 1]
    others = [weight for weight in weights if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _pair(betas: Sequence[float]) -> tuple[float, float]:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas: expected two numbers from 0 to below 1, found {list(betas)}")
    return betas[0], betas[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSettings:
    """The settings of a step. A schedule and `total` count optimiser steps, not training steps."""

    lr: float = 1e-6
    schedule: Schedule = constant  # the share of `lr` at a step; with a warmup: functools.partial(constant, warmup=10)
    total: int | None = None  # required by a schedule that falls to 0 at the last step
    algorithm: Algorithm = adamw  # with other options: functools.partial(adamw, weight_decay=0.1)
    clip_norm: float = 1.0  # of the gradient of all weights together
    patience: int = 3  # refused steps in a row after which the run stops

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Real) or not 0 <= self.lr < math.inf:
            raise ValueError(f"lr: expected a number of 0 or more, found {self.lr!r}")
        if not isinstance(self.clip_norm, Real) or not self.clip_norm > 0:
            raise ValueError(f"clip_norm: expected a number above 0, found {self.clip_norm!r}; math.inf clips nothing")
        if self.patience < 1:
            raise ValueError(f"patience: expected 1 or more, found {self.patience}")
        self.schedule(0, self.total)  # raises what a schedule refuses before the run, not at its first step


class Optimiser:
    """An algorithm on a model's trainable weights. `steps` counts the steps taken, without those refused."""

    def __init__(self, model: nn.Module, settings: OptimiserSettings) -> None:
        self.settings = settings
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if not self.weights:
            raise ModelError("nothing to train: no weight of the model requires a gradient")
        self.is_sharded = any(map(is_sharded, self.weights.values()))
        self.inner = settings.algorithm(list(self.weights.values()))
        self.steps = 0
        self.refused_in_a_row = 0

    def step(self, loss: float) -> dict[str, float]:
        """Take a step along the gradients, and clear them.

        The algorithm's `step` gets a closure that returns the loss whose gradients these are: with clipped gradients,
        the loss times the same factor.

        If the loss or the gradient is not finite, the step is refused: weights and moments stay as they are, to the
        bit. `patience` such steps in a row raise `NonFiniteError`. A gradient of exactly zero moves nothing either:
        momentum alone moves no weight.
        """
        total = nn.utils.clip_grad_norm_(self.weights.values(), self.settings.clip_norm)
        norm = float(whole(total) if self.is_sharded else total)
        finite = math.isfinite(loss) and math.isfinite(norm)
        lr = self.settings.lr * self.settings.schedule(self.steps, self.settings.total)
        clipped = loss * min(1.0, self.settings.clip_norm / norm) if norm > 0 else loss
        if finite and norm > 0:
            for group in self.inner.param_groups:
                group["lr"] = lr
            self.steps += 1  # first: a step that an error breaks off may have changed some of the weights
            self.inner.step(lambda: clipped)
        self.inner.zero_grad()
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
        """Return the counters and, by weight name, what the algorithm keeps: its moments."""
        moments = {name: dict(self.inner.state[weight]) for name, weight in self.weights.items()}
        return {"steps": self.steps, "refused_in_a_row": self.refused_in_a_row, "moments": moments}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        if set(state["moments"]) != set(self.weights):
            raise ValueError("the optimiser's state belongs to another model")
        self.steps, self.refused_in_a_row = state["steps"], state["refused_in_a_row"]
        for name, weight in self.weights.items():
            moments: Mapping[str, Any] = state["moments"][name]
            self.inner.state[weight] = {key: _copy(value, weight) for key, value in moments.items()}


def pass_metrics(steps: Sequence[Mapping[str, float]], tokens: Sequence[int]) -> dict[str, float]:
    """Return the metrics of a pass from those of its optimiser steps: means, and the sums of those named `updates/`.

    `tokens` are the numbers of tokens that the steps trained on. The means leave out steps without any, and refused
    steps, whose loss or gradient is not finite; if there are no others, they are over all steps.
    """
    made = [
        step for step, count in zip(steps, tokens, strict=True) if count and not step.get("updates/refused")
    ] or steps
    sums = {name: math.fsum(step[name] for step in steps) for name in steps[0] if name.startswith("updates/")}
    return {name: sums[name] if name in sums else math.fsum(s[name] for s in made) / len(made) for name in steps[0]}


def _copy(value: Any, weight: Tensor) -> Any:
    return divided_like(value, weight).to(weight.device).clone() if isinstance(value, Tensor) else value
