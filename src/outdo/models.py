"""Everything that has weights, together: what a checkpoint saves and a resume restores."""

import copy
from collections.abc import Mapping
from typing import Any

from outdo.attention.forward import Forward
from outdo.objectives.objective import Objective
from outdo.policy import Policy, Scorer
from outdo.types import Batch, Update


class Models:
    """The policy πθ, and the reference π_ref where an objective asks for one.

    With `refresh_every` n, the reference becomes the policy as it stands after every n-th step: one iteration of
    DeepSeekMath's Algorithm 1 is n steps.
    """

    def __init__(self, policy: Policy, reference: Scorer | None = None, *, refresh_every: int | None = None) -> None:
        self.policy = policy
        self.reference = reference
        self.refresh_every = refresh_every

    @classmethod
    def of(cls, policy: Policy, objective: Objective, *, refresh_every: int | None = None) -> "Models":
        """With what the objective needs: the reference is the policy as it is now."""
        return cls(policy, frozen(policy) if objective.needs.reference else None, refresh_every=refresh_every)

    def update(self, batch: Batch, objective: Objective) -> Update:
        """One inner pass over a batch."""
        return self.policy.update(batch, objective)

    def refresh(self, step: int) -> None:
        """π_ref ← πθ, if an iteration ends with this step."""
        if self.reference is not None and self.refresh_every and step % self.refresh_every == 0:
            self.reference.forward.model.load_state_dict(self.policy.model.state_dict())

    def state(self) -> dict[str, Any]:
        """What the saved policy folder does not hold; the reference in full, for the policy has moved away from it."""
        reference = None if self.reference is None else dict(self.reference.forward.model.state_dict())
        return {"policy": self.policy.state(), "reference": reference}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.policy.load_state(state["policy"])
        if self.reference is not None:
            if state["reference"] is None:
                raise ValueError("the objective needs a reference, and the saved state holds none")
            self.reference.forward.model.load_state_dict(state["reference"])


def frozen(policy: Policy) -> Scorer:
    """A copy of the policy's weights that is only asked for log-probabilities."""
    model = copy.deepcopy(policy.model).requires_grad_(False)
    ways = policy.forward
    forward = Forward(model, way=ways.way, plain_head=ways.plain_head, autocast=ways.autocast, why=ways.why)
    return Scorer(forward, policy.work)
