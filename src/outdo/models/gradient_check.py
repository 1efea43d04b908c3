"""Compare one derivative of a model with a finite difference.

A layer without a backward pass cuts the gradient, and nothing else shows it: the loss is right, and the weights of the
first layers still get what arrives around the cut, on the residual connections.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from outdo.models.attention.choice import small_batch
from outdo.models.attention.forward import Forward
from outdo.types import Batch
from outdo.utils.errors import ModelError

TOLERANCE = 0.01
"""Relative difference of the two derivatives."""
ROUNDING = 3e-6
"""Nats that float32 may change in a mean log-probability."""
CHANGE = 5e-3
"""Nats by which the first step of the finite difference should change it."""
TRIES = 3
"""Steps, each a quarter of the one before: a step may be too long for a model that is far from linear."""


def check_gradient(forward: Forward) -> None:
    """Raise `ModelError` if the gradient that reaches the first layer is not that of the model's output.

    It is the derivative of the mean log-probability of some tokens with respect to factors of their embeddings, which
    leave embeddings of 0 alone: behind them a norm is far from linear. The gradients of
    all weights of the layers are made of it, and unlike some of these (DoRA's leave out a term on purpose) it is exact.
    The direction is half the gradient's own, so that the derivative is large, and half a random one, so that a part of
    the gradient cannot be mistaken for the whole.
    """
    batch = small_batch(forward.model.config.get_text_config().vocab_size).to(forward.device)
    start = _embeddings(forward, batch)  # a first call without gradients, as sampling makes before training
    with torch.enable_grad():
        shift = torch.zeros_like(start).requires_grad_()
        (gradient,) = torch.autograd.grad(_mean_logprob(forward, batch, lambda output: output * (1 + shift)), shift)
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0)).to(start)
    direction = _unit(gradient) + _unit(noise)
    found = float((gradient.double() * direction.double()).sum())
    step, expected = CHANGE / max(abs(found), CHANGE), 0.0
    for _ in range(TRIES):
        with torch.no_grad():
            ahead = _mean_logprob(forward, batch, lambda output: output * (1 + step * direction))  # noqa: B023
            behind = _mean_logprob(forward, batch, lambda output: output * (1 - step * direction))  # noqa: B023
        expected = float(ahead - behind) / (2 * step)
        if abs(found - expected) <= TOLERANCE * max(abs(found), abs(expected)) + ROUNDING / (2 * step):
            return
        step /= 4
    raise ModelError(
        f"{type(forward.model).__name__}: the gradient of its first layer is wrong: by autograd the derivative is "
        f"{found:.3g}, by a finite difference {expected:.3g}; some layer has no backward pass on this device"
    )


def _unit(tensor: Tensor) -> Tensor:
    return tensor / tensor.norm().clamp(min=torch.finfo(tensor.dtype).tiny)


def _embeddings(forward: Forward, batch: Batch) -> Tensor:
    """Return the embeddings of a batch's tokens, in the form in which the model gets them."""
    found: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        found.append(output)
        return output

    with torch.no_grad():
        _mean_logprob(forward, batch, keep)
    return found[0]


def _mean_logprob(forward: Forward, batch: Batch, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the mean log-probability of a batch's tokens with changed embeddings."""
    embedding = forward.model.get_input_embeddings()
    assert isinstance(embedding, nn.Module)
    rows, columns = batch.loss_mask.nonzero(as_tuple=True)

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return change(output)

    with embedding.register_forward_hook(hook):
        hidden, source = forward.hidden(batch)
        logprobs, _ = forward.scores(
            hidden[source[rows, columns]], batch.token_ids[rows, columns], batch.temperature[rows], entropy="none"
        )
    return logprobs.double().mean()
