"""ECHO: the policy also learns to predict what the environment answers, beside any composed objective.

    J_ECHO = J + λ · 1/N Σ_{b,t} log πθ(token t)

over the N tokens of an optimiser step that environments wrote: results of tools, turns of games and users. They need no
forward pass of their own. ECHO (arXiv 2605.24517) has J = GRPO and λ = 0.05. What differs: the paper leaves out
warnings that its terminal adds; here all tokens of the environment count, of all answers that have a reward.
"""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.types import Batch, Terms, TokenScores


@dataclass(frozen=True, kw_only=True)
class WithEnvironment(ComposedObjective):
    """A composed objective with the term of the environment's tokens. `echo` is λ, above 0."""

    echo: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.echo < float("inf"):
            raise ValueError(f"echo must be a number above 0, not {self.echo}")

    @classmethod
    def of(cls, objective: ComposedObjective, echo: float) -> "WithEnvironment":
        """Add the term to an objective."""
        pieces = {piece.name: getattr(objective, piece.name) for piece in fields(objective) if piece.init}
        return cls(**pieces, echo=echo)

    def prepare(self, batch: Batch) -> Batch:
        """Return the transformed batch, with the tokens that the environment wrote."""
        return super().prepare(batch).with_(environment=written(batch))

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Compute the terms of the objective, and that of the environment. It is 0 in a step without such tokens."""
        terms = super().__call__(scores, batch)
        assert batch.environment is not None, "`prepare` sets it"
        predicted = scores.logprobs.where(batch.environment, 0.0).sum() / max(1, batch.totals.environment)
        environment = self.echo * predicted
        return replace(terms, environment=environment, loss=terms.loss - environment)


def written(batch: Batch) -> Bool[Tensor, "B T"]:
    """Return which tokens the environment wrote behind the prompt, of the rows with a reward."""
    behind = torch.arange(batch.turn.shape[1], device=batch.turn.device) >= batch.prompt_lengths[:, None]
    return batch.attention_mask & behind & (batch.turn < 0) & batch.scored[:, None]
