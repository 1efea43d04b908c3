"""Compare ways to compute a model with the plain forward pass, on a few tokens."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.base_weights import is_quantised
from outdo.models.forward import Forward
from outdo.models.limits import MISMATCH
from outdo.models.rounding import distance, in_float64, probe_tokens, rounding
from outdo.models.sharding import sharding_of
from outdo.types import Batch
from outdo.utils.errors import ModelError

TOLERANCE = 1e-4  # nats, in float32, between two ways to compute a small model; both right, they differ by some 1e-6
TINY = 1e-7  # nats, in float64; so much is allowed where float32 rounds nothing
NARROW_TOLERANCE = 0.5  # nats, between two kernels in bfloat16; whole forward passes were 0.36 apart


class Probe:
    """What the plain forward pass computes of a few tokens, with which other ways are compared.

    Raises `ModelError` if padding changes the model's log-probabilities.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.plain = Forward(model)
        self.batch = small_batch(model.config.get_text_config().vocab_size).to(self.plain.device)
        compute = partial(next_logprobs, self.plain, self.batch)
        self.narrow = compute()
        self.rounding = self.plain.rounding = rounding(model, compute, self.narrow)
        # The kernels of quantised weights write float32 into whatever memory is asked for in float64.
        impossible = self.plain.sharding.is_divided or any(map(is_quantised, model.parameters()))
        self.wide = None if impossible else in_float64(compute)
        _check_padding(self.plain, self.batch, self.narrow)

    def fault(self, other: Forward) -> str:
        """Return how another way differs from the plain one in what it computes; empty if it does not.

        In float64, where both can be computed in it, they may differ by the rounding of float32.
        """
        compute = partial(next_logprobs, other, self.batch)
        if self.wide is not None and (values := in_float64(compute)) is not None:
            return difference(lambda: values, self.wide, max(self.rounding, TINY))
        return self.fault_in_float32(other)

    def fault_in_float32(self, other: Forward) -> str:
        """Return how another way, as it runs in float32, differs from the plain one; empty if it does not.

        oneDNN takes no part in float64: only this comparison sees a wrong product of it.
        """
        compute = partial(next_logprobs, other.in_float32(), self.batch)
        return difference(compute, self.narrow, self.plain.tolerance(TOLERANCE))


@torch.no_grad()
def difference(compute: Callable[[], Tensor], expected: Tensor, most: float) -> str:
    """Return the `distance` of log-probabilities from those expected, if it is more than `most`; otherwise nothing."""
    try:
        actual = compute()
    except Exception as error:  # any error is a reason not to run the model this way
        return f"{type(error).__name__}: {error}"
    if actual.shape != expected.shape:
        return f"it returns {actual.shape[-1]} values, and the model has a vocabulary of {expected.shape[-1]}"
    gap = distance(expected, actual)
    return "" if gap <= most else f"its log-probabilities differ by {gap:.2g} nats"  # NaN is not


@torch.no_grad()  # a graph would keep the gathered weights of a divided model
def next_logprobs(forward: Forward, batch: Batch) -> Tensor:
    """Compute the distribution that predicts each trained token of a batch, as log-probabilities [N, V]."""

    def compute() -> tuple[Tensor]:
        hidden, source = forward.hidden(batch)
        return (forward.head(hidden[source[:, :-1][batch.loss_mask]]).float().log_softmax(-1),)

    return forward.with_weights(compute)[0]


def influence(model: PreTrainedModel, compute: Callable[[], Tensor]) -> Tensor:
    """Return the derivative of some numbers with respect to the embeddings of all tokens, [..., H].

    `compute` runs the model once. Where a token is not read, the derivative is exactly 0, however the numbers round.
    It is taken where no embedding is 0, as that of a padding token is: a norm has no derivative there (Gemma 3n).
    """
    embeddings: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        zero = (output == 0).all(-1, keepdim=True)
        embeddings.append(output.detach().masked_fill(zero, 1.0).requires_grad_())
        return embeddings[0].clone()  # which a model may change in place, as it may not change a leaf

    with model.get_input_embeddings().register_forward_hook(keep), torch.enable_grad():
        (values,) = sharding_of(model)(lambda: (compute(),))
        # The derivative of a plain sum is 0 behind a norm.
        uneven = torch.linspace(1, 2, values.shape[-1], device=values.device)
        (derivative,) = torch.autograd.grad((values.float() * uneven).sum(), embeddings)
    return derivative


def small_batch(vocabulary: int) -> Batch:
    """Two prompts with two answers each, all of different lengths."""
    tokens = probe_tokens(vocabulary)
    prompts = [tokens[:5]] * 2 + [tokens[:11]] * 2
    completions = [tokens[start : start + length] for start, length in ((5, 6), (10, 9), (11, 6), (22, 9))]
    return Batch.of_tokens(prompts, completions, group=[0, 0, 1, 1])


@torch.no_grad()
def _check_padding(plain: Forward, batch: Batch, together: Tensor) -> None:
    """Raise `ModelError` if a row has other log-probabilities alone than `together` with others, padded."""
    lengths = batch.attention_mask.sum(1).tolist()

    def compute() -> tuple[Tensor, ...]:
        alone = []
        for row, length in zip(range(len(batch)), lengths, strict=True):
            logits = plain.model(input_ids=batch.token_ids[row : row + 1, :length], use_cache=False).logits[0]
            predicts = batch.loss_mask[row, 1:length].nonzero()[:, 0]
            alone.append(logits[predicts].float().log_softmax(-1))  # of [L, V]
        return tuple(alone)

    gap = float((together - torch.cat(plain.with_weights(compute))).abs().max())
    if not gap < plain.tolerance(MISMATCH):
        raise ModelError(
            f"{type(plain.model).__name__}: padding changes its log-probabilities by {gap:.2g} nats, or they are not "
            "finite; outdo computes answers of different lengths together and cannot train such a model"
        )
