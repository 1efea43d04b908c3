"""The objective `target`: set a target probability for each sampled token, and train towards it.

    L = 1/N Σ_c w_c [ Σ_{v ∈ S(c)} τ_v log(τ_v / πθ(v|c)) + τ_R log(τ_R / (1 - Σ_S πθ)) ]

over the contexts c of a batch, with the weight w_c = the number of answers in c, or 1; S, τ and the rest are defined in
`outdo.algorithms.objectives.target.rules`. Every loss is 0 at the targets, its minimum: a step to it can be measured.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.objectives.target.rules import (
    Aim,
    Setting,
    capped,
    clip_rule,
    power_rule,
    tilt_rule,
    with_targets,
)
from outdo.algorithms.progress import FULL
from outdo.algorithms.requirements import Requires
from outdo.types import Batch, Terms, TokenScores
from outdo.utils.errors import did_you_mean

CAP = 3.0
"""The largest distance of a target of `squared` and `hinge`, in nats. Their gradient grows with the distance."""

Loss = Callable[[Float[Tensor, "N"], Aim], Float[Tensor, ""]]
"""`(log πθ [N], aim) -> []` of the N trained tokens; minimised."""


@marks.objective(lowest_loss_0=True)
def target(
    *,
    rule: str = "tilt",
    power: float = 2.0,
    eta: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    loss: str = "cross_entropy",
    merge: str = "tree",
    count: str = "visits",
    unsampled: str = "share",
    keep: float = 0.5,
    limit: float = 10.0,
    hold: bool = False,
    reduction: str = "mean",
) -> "TargetObjective":
    """Set a target probability for every sampled token: the objective only decides *how much* a token changes.

    The defaults are one step of mirror descent in each context: the target is π_old e^(eta s) / Z, where s is the mean
    advantage of the answers that sampled the token there, and 0 for a token that none sampled. For a small `eta` the
    first update is that of a policy gradient with probabilities in the place of frequencies; later updates converge to
    the targets. With the optimiser `polyak`, `eta` is the only size to choose. `target_essay` is the form of the essay
    on GRPO that proposes the method.

    `rule` sets the target of a token with probability p and advantage s (one beyond ±`limit` counts as ±`limit`):

        "tilt"    p e^(eta s)
        "power"   p^(power^-s)      good tokens get √p, bad ones p², neutral and evenly disputed tokens keep p
        "clip"    p (1 + clip_high s), or p (1 + clip_low s) where s < 0, at least p / 1000: with s = ±1 the bounds at
                  which GRPO would stop

    `unsampled` is where the probability that the targets add or remove comes from and goes to:

        "share"   all tokens of the context: the targets and the old probability of the rest, divided by their sum
        "absorb"  the tokens that no answer sampled; where good tokens would take more than `1 - keep` of theirs, they
                  get less (see `target_logprobs`). A token alone in its context always gets √p ≤ (1 + p) / 2
        "fixed"   the sampled tokens only: their targets are divided so that the rest keeps its probability, and
                  contexts in which all answers sampled the same token are not trained

    `loss` is "cross_entropy" to {sampled tokens, rest}, minus its value at the targets; its gradient by the logits of S
    is πθ - τ. "squared" is (log πθ - log τ)² / 2, "hinge" |log πθ - log τ| until the target is reached and 0 beyond it;
    neither uses the rest, and neither has a target farther than `CAP` nats. `merge` "tree" shares contexts on the
    prefix tree of the group; with "none" every token of every answer has its own context. `count` "visits" weights a
    context by the number of answers in it, as a policy gradient does; "once" does not. `reduction` "mean" divides by
    the trained tokens of the optimiser step, "sum" does not.

    A context where no token is good or bad is not trained on; with `hold` its tokens keep their probability, which in
    later passes pulls back tokens that other updates have moved.

    Raises `ValueError` for an unknown rule, loss or merge, or a number out of its range.
    """
    rules = {"power": power_rule(power), "tilt": tilt_rule(eta), "clip": clip_rule(clip_low, clip_high)}
    wrong = [
        *_unknown("rule", rule, rules),
        *_unknown("loss", loss, LOSSES),
        *_unknown("merge", merge, {"tree": True, "none": False}),
        *_unknown("count", count, {"once": False, "visits": True}),
        *_unknown("unsampled", unsampled, {"absorb": 0, "share": 1, "fixed": 2}),
        *_unknown("reduction", reduction, {"mean": True, "sum": False}),
        *([] if power > 1 else [f"power must be above 1, not {power}"]),
        *([] if eta > 0 else [f"eta must be above 0, not {eta}"]),
        *([] if 0 < clip_low < 1 else [f"clip_low must be between 0 and 1, not {clip_low}"]),
        *([] if clip_high > 0 else [f"clip_high must be above 0, not {clip_high}"]),
        *([] if 0 <= keep <= 1 else [f"keep must be from 0 to 1, not {keep}"]),
        *([] if limit > 0 else [f"limit must be above 0, not {limit}"]),
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    cap = math.inf if loss == "cross_entropy" else CAP
    setting = Setting(
        rule=capped(rules[rule], cap),
        keep=keep,
        merge=merge == "tree",
        hold=hold,
        unsampled=unsampled,
        visits=count == "visits",
        limit=limit,
        cap=cap,
    )
    return TargetObjective(loss=LOSSES[loss], setting=setting, mean=reduction == "mean")


@marks.objective(published_with="sign", lowest_loss_0=True)
def target_essay(*, power: float = 2.0, keep: float = 0.5) -> "TargetObjective":
    """Set target probabilities in the form of the essay on GRPO: √p for good tokens, p² for bad ones.

    Only the sign of an advantage counts, every context counts once, the probability comes from and goes to tokens that
    no answer sampled, and there is no mean: no 1/G, no 1/|o|, and no KL. A step from π_old pushes log πθ of a token
    alone in its context by (τ - p) / (1 - p), never more than 1/2 upwards and p downwards.

    What differs from the essay: `keep`, and the tree, are how its "scale back down the probabilities so that they do
    not sum to more than one" is made exact. Published with Â = sign.

    Raises `ValueError` for a number out of its range.
    """
    return target(rule="power", power=power, count="once", unsampled="absorb", keep=keep, limit=1.0, reduction="sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetObjective:
    """A loss with its minimum at the targets, and how these are set."""

    loss: Loss
    setting: Setting
    mean: bool = False  # divide by the trained tokens of the optimiser step
    has_ratio: ClassVar[bool] = False

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
        loss = loss / max(1, batch.totals.tokens) if self.mean else loss
        zero = loss.detach() * 0
        return Terms(policy=-loss, divergence=zero, entropy=zero, loss=loss)


def cross_entropy(logprobs: Float[Tensor, "N"], aim: Aim) -> Float[Tensor, ""]:
    """Σ_c w_c [ Σ_S τ log(τ / πθ) + τ_R log(τ_R / (1 - Σ_S πθ)) ]: the cross-entropy minus the entropy of the targets.

    Rows that sampled the same token have the same probability; each has an equal share of it. The rest is computed from
    its old value: it loses what the sampled tokens gain. Below `FULL`, where the difference of two float32 numbers near
    1 is noise, its logarithm no longer decreases, but keeps its gradient.
    """
    ids, context = aim.context.unique(return_inverse=True)
    gain = aim.share * (logprobs.exp() - aim.old.exp())
    nothing = logprobs.new_zeros(len(ids))  # [C]
    now = nothing.scatter(0, context, aim.old_rest) - nothing.index_add(0, context, gain)
    now = now + (now.clamp(min=FULL) - now).detach()
    sampled = aim.weight * aim.share * aim.target.exp() * (aim.target - logprobs)
    rest = nothing.scatter(0, context, aim.rest)
    weight = nothing.scatter(0, context, aim.weight)
    return sampled.sum() + (weight * rest * (rest.clamp(min=FULL).log() - now.log())).sum()


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
