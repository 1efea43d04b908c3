"""The objective `target`: set a target probability for each sampled token, and train towards it.

    L = Σ_c w_c [ -Σ_{v ∈ S(c)} τ_v log πθ(v|c) - τ_R log(1 - Σ_S πθ) ]

over the contexts c of a batch, with the weight w_c = 1, or the number of answers in c; S, τ and the rest are defined in
`outdo.algorithms.objectives.target.rules`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.objectives.target.rules import (
    FULL,
    Aim,
    Setting,
    capped,
    clip_rule,
    power_rule,
    tilt_rule,
    with_targets,
)
from outdo.algorithms.requirements import Requires
from outdo.types import Batch, Terms, TokenScores
from outdo.utils.errors import did_you_mean

CAP = 3.0
"""The largest distance of a target of `squared` and `hinge`, in nats. Their gradient grows with the distance."""

Loss = Callable[[Float[Tensor, "N"], Aim], Float[Tensor, ""]]
"""`(log πθ [N], aim) -> []` of the N trained tokens; minimised."""


def target(
    *,
    rule: str = "power",
    power: float = 2.0,
    eta: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    loss: str = "cross_entropy",
    merge: str = "tree",
    count: str = "once",
    unsampled: str = "absorb",
    keep: float = 0.5,
    limit: float = 1.0,
    hold: bool = False,
) -> "TargetObjective":
    """Set target probabilities, as an essay on GRPO proposes: the objective only decides *how much* a token changes.

    `rule` sets the target of a token with probability p and advantage s (one beyond ±`limit` counts as ±`limit`):

        "power"   p^(power^-s)      good tokens get √p, bad ones p², neutral and evenly disputed tokens keep p
        "tilt"    p e^(eta s)
        "clip"    p (1 + clip_high s), p (1 + clip_low s) where s < 0: the bounds at which GRPO would stop

    `unsampled` is where the probability that the targets add or remove comes from and goes to:

        "absorb"  the tokens that no answer sampled; where good tokens would take more than `1 - keep` of theirs, they
                  get less (see `target_logprobs`). A token alone in its context always gets √p ≤ (1 + p) / 2
        "share"   all tokens of the context: the targets and the old probability of the rest, divided by their sum
        "fixed"   the sampled tokens only: their targets are divided so that the rest keeps its probability, and
                  contexts in which all answers sampled the same token are not trained

    `loss` is "cross_entropy" to {sampled tokens, rest}, whose gradient by the logits of S is πθ - τ: a step from π_old
    pushes log πθ of a token alone by (τ - p) / (1 - p), never more than 1/2 upwards and p downwards. "squared" is
    (log πθ - log τ)² / 2, "hinge" |log πθ - log τ| until the target is reached and 0 beyond it; neither uses
    the rest, and neither has a target farther than `CAP` nats. `merge` "tree" shares contexts on the prefix tree of the
    group; with "none" every token of every answer has its own context. `count` "visits" weights a context by the
    number of answers in it, as a policy gradient does; "once" does not.

    A context where no token is good or bad is not trained on; with `hold` its tokens keep their probability, which in
    later passes pulls back tokens that other updates have moved.

    What differs from the essay: `keep`, and the tree, are how its "scale back down the probabilities so that they do
    not sum to more than one" is made exact. As in the essay there is no 1/G, no 1/|o| and no KL: the loss is a sum
    over contexts, and grows with the batch. Use it with the advantage `sign` and several passes per batch.

    Raises `ValueError` for an unknown rule, loss or merge, or a number out of its range.
    """
    rules = {"power": power_rule(power), "tilt": tilt_rule(eta), "clip": clip_rule(clip_low, clip_high)}
    wrong = [
        *_unknown("rule", rule, rules),
        *_unknown("loss", loss, LOSSES),
        *_unknown("merge", merge, {"tree": True, "none": False}),
        *_unknown("count", count, {"once": False, "visits": True}),
        *_unknown("unsampled", unsampled, {"absorb": 0, "share": 1, "fixed": 2}),
        *([] if power > 1 else [f"power must be above 1, not {power}"]),
        *([] if eta > 0 else [f"eta must be above 0, not {eta}"]),
        *([] if 0 < clip_low < 1 else [f"clip_low must be between 0 and 1, not {clip_low}"]),
        *([] if clip_high > 0 else [f"clip_high must be above 0, not {clip_high}"]),
        *([] if 0 <= keep <= 1 else [f"keep must be from 0 to 1, not {keep}"]),
        *([] if limit > 0 else [f"limit must be above 0, not {limit}"]),
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    full = loss == "cross_entropy"
    setting = Setting(
        rule=rules[rule] if full else capped(rules[rule], CAP),
        keep=keep,
        merge=merge == "tree",
        hold=hold,
        unsampled=unsampled,
        visits=count == "visits",
        limit=limit,
    )
    return TargetObjective(loss=LOSSES[loss], setting=setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetObjective:
    """A loss with its minimum at the targets, and how these are set."""

    loss: Loss
    setting: Setting

    @property
    def requires(self) -> Requires:
        """Return π_old, and whole groups where the loss is a sum over the rows of a group."""
        return Requires(old_logprobs=True, whole_groups=self.setting.merge and self.loss is cross_entropy)

    def prepare(self, batch: Batch) -> Batch:
        """Compute the targets from `old_logprobs` and `advantages`."""
        return with_targets(batch, self.setting)

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Compute the loss of a micro-batch. Divergence and entropy are 0."""
        loss = self.loss(scores.logprobs[batch.loss_mask], Aim.of(batch))
        zero = loss.detach() * 0
        return Terms(policy=-loss, divergence=zero, entropy=zero, loss=loss)


def cross_entropy(logprobs: Float[Tensor, "N"], aim: Aim) -> Float[Tensor, ""]:
    """-Σ_c w_c [ Σ_S τ log πθ + τ_R log(1 - Σ_S πθ) ].

    Rows that sampled the same token have the same probability; each has an equal share of it. The rest is computed from
    its old value: it loses what the sampled tokens gain. Below `FULL`, where the difference of two float32 numbers near
    1 is noise, its logarithm no longer decreases, but keeps its gradient.
    """
    ids, context = aim.context.unique(return_inverse=True)
    gain = aim.share * (logprobs.exp() - aim.old.exp())
    nothing = logprobs.new_zeros(len(ids))  # [C]
    now = nothing.scatter(0, context, aim.old_rest) - nothing.index_add(0, context, gain)
    now = now + (now.clamp(min=FULL) - now).detach()
    sampled = aim.weight * aim.share * aim.target.exp() * logprobs
    return -sampled.sum() - (nothing.scatter(0, context, aim.weight * aim.rest) * now.log()).sum()


def squared(logprobs: Float[Tensor, "N"], aim: Aim) -> Float[Tensor, ""]:
    """Σ_c w_c Σ_S (log πθ - log τ)² / 2."""
    return (aim.weight * aim.share * (logprobs - aim.target).square()).sum() / 2


def hinge(logprobs: Float[Tensor, "N"], aim: Aim) -> Float[Tensor, ""]:
    """Σ_c w_c Σ_S of the nats that are missing to the target; 0, without a gradient, for a token beyond its target."""
    return (aim.weight * aim.share * ((aim.target - logprobs) * (aim.target - aim.old).sign()).relu()).sum()


LOSSES: Mapping[str, Loss] = {"cross_entropy": cross_entropy, "squared": squared, "hinge": hinge}


def _unknown(option: str, name: str, known: Mapping[str, object]) -> list[str]:
    if name in known:
        return []
    return [f'{option} "{name}" is not one of {", ".join(known)}{did_you_mean(name, list(known))}']
