"""What one process does for a model: it scores its share of a batch, and adds its share of the gradient.

The objective is not here. It is asked in one place, of the scores of all; what comes back to a hand is the derivative
of the loss by each of its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outdo.models.attention.forward import Forward
from outdo.models.logprobs import Entropy
from outdo.types import Batch, TokenScores


class ScoringWorker:
    """A model in one process. In another one than the trainer's it adds its gradient to `gradients`, shared memory."""

    def __init__(self, forward: Forward, gradients: Sequence[Tensor] = ()) -> None:
        self.forward = forward
        self.gradients = gradients
        self._scored: TokenScores | None = None

    def scores(self, batch: Batch, entropy: Entropy, chunk: int | None) -> TokenScores:
        """log πθ of the batch's trained tokens, 0 elsewhere, [B, T]; differentiable. See `Scorer.scores`."""
        batch = batch.to(self.forward.device)
        hidden, source = self.forward.hidden(batch)
        rows, columns = batch.loss_mask.nonzero(as_tuple=True)
        chosen, temperature = batch.token_ids[rows, columns], batch.temperature[rows]
        logprobs, entropies = self.forward.scores(
            hidden[source[rows, columns]], chosen, temperature, entropy=entropy, chunk=chunk
        )

        def place(values: Tensor) -> Tensor:
            return values.new_zeros(batch.token_ids.shape).index_put((rows, columns), values)  # [B, T]

        return TokenScores(logprobs=place(logprobs), entropy=None if entropy == "none" else place(entropies))

    @torch.no_grad()
    def measure(self, batch: Batch, entropy: Entropy, chunk: int | None) -> TokenScores:
        """The scores without gradients, on the CPU."""
        found = self.scores(batch, entropy, chunk)
        return TokenScores(
            logprobs=found.logprobs.cpu(), entropy=None if found.entropy is None else found.entropy.cpu()
        )

    def forward_(self, batch: Batch, entropy: Entropy, chunk: int | None) -> TokenScores:
        """The scores, detached; their graph is kept for `pull`."""
        self._scored = self.scores(batch, entropy, chunk)
        found = self._scored
        return TokenScores(
            logprobs=found.logprobs.detach(), entropy=None if found.entropy is None else found.entropy.detach()
        )

    def backward(self, logprobs: Tensor, entropy: Tensor | None) -> None:
        """Add the gradient, given the loss's derivatives by what `score` gave last. Where all are 0, it is known."""
        scored, self._scored = self._scored, None
        assert scored is not None
        both = [(scored.logprobs, logprobs), (scored.entropy, entropy)]
        asked = [(value, by) for value, by in both if value is not None and by is not None and by.any()]
        if asked:
            torch.autograd.backward([value for value, _ in asked], [by for _, by in asked])

    def clear(self) -> None:
        """Forget a graph that nobody is going to ask for."""
        self._scored = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process: gradients go where its parent finds them."""
        self.__dict__.update(state)
        weights = [weight for weight in self.forward.model.parameters() if weight.requires_grad]
        for weight, gradient in zip(weights, self.gradients, strict=True):
            weight.grad = gradient
