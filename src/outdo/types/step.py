"""What training makes of a batch: scores, the terms of a loss, updates, and the step that has all of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float, Shaped
from torch import Tensor

from outdo.types.batch import Batch
from outdo.types.rollouts import Group, Sampled
from outdo.utils.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """The policy's current log-probabilities of a batch's tokens, with their gradient, and sums over the vocabulary."""

    logprobs: Float[Tensor, "B T"]  # log πθ; 0 where neither `loss_mask` nor `environment` is True
    sums: Mapping[str, Float[Tensor, "B T"]] = field(default_factory=dict)  # by name, as the objective requires them


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The value of an objective and its parts: scalars. Their sums over the micro-batches are those of the step."""

    policy: Float[Tensor, ""]  # Σ w · c · S, maximised
    divergence: Float[Tensor, ""]  # β · Σ w · D, subtracted
    entropy: Float[Tensor, ""]  # η · Σ w · H, added
    loss: Float[Tensor, ""]  # -(policy - divergence + entropy - teacher + environment), minimised
    teacher: Float[Tensor, ""] | None = None  # β_T · Σ w · D_T, subtracted; None: the objective has no such term
    environment: Float[Tensor, ""] | None = None  # λ · mean log πθ of `Batch.environment`, added; None: no such term


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Update:
    """The result of one pass over a batch."""

    metrics: Mapping[str, float]
    tokens: Mapping[str, Shaped[Tensor, "B T"]]  # detached, on the CPU; see `Policy.update`

    def __repr__(self) -> str:
        return f"Update(loss {self.metrics.get('loss', float('nan')):.4g}, tokens: {', '.join(self.tokens)})"


Stop = Callable[[Batch, Sequence[Update]], str]
"""`(batch, passes so far) -> reason` to end the passes over the batch; an empty text to continue."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Step:
    """All data of a training step; `train` yields one after each step."""

    index: int  # 1, 2, ...
    sampled: Sampled  # the groups, and metrics of how they were sampled
    batch: Batch
    updates: Sequence[Update]  # one per pass; none where there was no token to train on
    stopped: str = "maximum"  # why the passes ended: all were made, or the name of a stopping rule

    def __repr__(self) -> str:
        """Return a line without tokens and tensors: what a notebook shows. `outdo.show` shows the tokens."""
        rewards = self.batch.rewards[self.batch.scored]
        mean = f"mean reward {rewards.mean():.3f}" if len(rewards) else "no reward"
        groups, rollouts = counted(len(self.groups), "group"), counted(len(self.batch), "rollout")
        passes = counted(len(self.updates), "pass", plural="passes")
        return f"Step {self.index}: {groups}, {rollouts}, {mean}, {passes}; outdo.show(step)"

    @property
    def groups(self) -> Sequence[Group]:
        """The groups that were sampled."""
        return self.sampled.groups

    @property
    def update(self) -> Update | None:
        """The last pass."""
        return self.updates[-1] if self.updates else None
