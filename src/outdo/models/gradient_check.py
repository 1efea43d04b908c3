"""Check derivatives of a model with an adapter, for faults that neither the loss nor a first forward pass shows.

A layer without a backward pass cuts the gradient: the loss is right, and the weights of the first layers still get what
arrives around the cut, on the residual connections. So one derivative is compared with a finite difference. And an
adapter that mixes the rows of a batch computes nothing before its first update.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.forward import Forward
from outdo.models.probe import influence, small_batch
from outdo.models.rounding import last_bits_changed
from outdo.utils.errors import ModelError

TOLERANCE = 0.01
"""Relative difference of the two derivatives."""
ROUNDING = 3e-6
"""What float32 changes in the output, a mean log-probability or a mean score, at least; a model that rounds more than
the small ones on which this was measured has twice what a change of its last bits makes."""
CHANGE = 5e-3
"""By how much the first step of the finite difference should change it."""
TRIES = 3
"""Steps, each a quarter of the one before: a step may be too long for a model that is far from linear."""
NOISE = 0.05
"""The standard deviation of what is added to the weights of an adapter, which computes nothing at first."""


def check_gradient(model: PreTrainedModel, output: Callable[[], Tensor]) -> None:
    """Raise `ModelError` if the gradient that reaches the first layer is not that of the model's output.

    `output` computes a number of order 1 with the model, such as `mean_logprob`, always from the same tokens. Its
    derivative is the one with respect to factors of their embeddings, which leave embeddings of 0 alone: behind them a
    norm is far from linear. The gradients of all weights of the layers are made of it, and unlike some of these (DoRA's
    leave out a term on purpose) it is exact. The direction is half the gradient's own, so that the derivative is large,
    and half a random one, so that a part of the gradient cannot be mistaken for the whole.
    """
    start = _embeddings(model, output)  # a first call without gradients, as sampling makes before training
    with torch.enable_grad():
        shift = torch.zeros_like(start).requires_grad_()
        (gradient,) = torch.autograd.grad(
            _with_embeddings(model, output, lambda embedded: embedded * (1 + shift)), shift
        )
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0)).to(start)
    direction = _unit(gradient) + _unit(noise)
    slope = float((gradient.double() * direction.double()).sum())
    step, expected, noise = CHANGE / max(abs(slope), CHANGE), 0.0, max(ROUNDING, 2 * _moved_by_rounding(model, output))
    for _ in range(TRIES):
        with torch.no_grad():
            ahead = _with_embeddings(model, output, lambda embedded: embedded * (1 + step * direction))  # noqa: B023
            behind = _with_embeddings(model, output, lambda embedded: embedded * (1 - step * direction))  # noqa: B023
        expected = float(ahead - behind) / (2 * step)
        if abs(slope - expected) <= TOLERANCE * max(abs(slope), abs(expected)) + noise / (2 * step):
            return
        step /= 4
    raise ModelError(
        f"{type(model).__name__}: the gradient of its first layer is wrong: by autograd the derivative is "
        f"{slope:.3g}, by a finite difference {expected:.3g}; some layer has no backward pass on this device"
    )


def mean_logprob(forward: Forward) -> Tensor:
    """Compute the mean log-probability of some tokens, a scalar."""
    batch = small_batch(forward.model.config.get_text_config().vocab_size).to(forward.device)
    rows, columns = batch.loss_mask.nonzero(as_tuple=True)

    (logprobs,) = forward.with_weights(partial(forward.scores_at, batch, rows, columns))
    return logprobs.double().mean()


def check_rows_apart(model: PreTrainedModel, padded: Forward) -> None:
    """Raise `ModelError` if an adapter lets a token read another row of its batch, or a token after it.

    Then its log-probability depends on the micro-batch. `padded` is the forward pass with padded rows. A new adapter
    computes nothing, so that some noise is added to its weights meanwhile. Where nothing is read, the derivative is
    exactly 0, however the numbers round.
    """
    batch = small_batch(model.config.get_text_config().vocab_size).to(padded.device)
    row, column = 1, int(batch.prompt_lengths[1])

    def output() -> Tensor:
        hidden, source = padded.hidden(batch)
        return hidden[source[row, column + 1]]

    with _noise_in(model):
        derivative = influence(model, output)
    derivative[row, : column + 1] = 0  # the tokens that it may read
    if derivative.any():
        raise ModelError(
            f"{type(model).__name__}: with this adapter a token reads other rows of its batch, or tokens after it, so "
            "that its log-probability depends on the batch; outdo cannot train such an adapter"
        )


@contextmanager
def _noise_in(model: PreTrainedModel) -> Iterator[None]:
    """Add noise to the trained weights of a model during a `with` block."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    before, source = [weight.detach().clone() for weight in trained], torch.Generator().manual_seed(0)
    try:
        for weight in trained:
            weight.data.add_(NOISE * torch.randn(weight.shape, generator=source).to(weight))
        yield
    finally:
        for weight, saved in zip(trained, before, strict=True):
            weight.data.copy_(saved)


@torch.no_grad()
def _moved_by_rounding(model: PreTrainedModel, output: Callable[[], Tensor]) -> float:
    """Return by how much a change of the last bit of every layer's output moves the output."""
    expected = output()
    with last_bits_changed(model):
        return float((output() - expected).abs())


def _unit(tensor: Tensor) -> Tensor:
    return tensor / tensor.norm().clamp(min=torch.finfo(tensor.dtype).tiny)


def _embeddings(model: PreTrainedModel, output: Callable[[], Tensor]) -> Tensor:
    """Return the embeddings of the tokens, in the form in which the model gets them."""
    passed: list[Tensor] = []

    def keep(embeddings: Tensor) -> Tensor:
        passed.append(embeddings)
        return embeddings

    with torch.no_grad():
        _with_embeddings(model, output, keep)
    return passed[0]


def _with_embeddings(
    model: PreTrainedModel, output: Callable[[], Tensor], change: Callable[[Tensor], Tensor]
) -> Tensor:
    """Compute the output from changed embeddings."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Module)

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], embeddings: Tensor) -> Tensor:
        return change(embeddings)

    with embedding.register_forward_hook(hook):
        return output()
