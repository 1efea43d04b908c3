"""Everything that has weights, together: what a checkpoint saves and a resume restores."""

from collections.abc import Mapping
from typing import Any

import torch

from outdo.algorithms.advantages import Advantage
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.models.critic import Critic, own_model
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.scorer import Scorer
from outdo.types import Batch, Update


class Models:
    """The policy πθ, the reference π_ref where something asks for one, the critic V where an advantage does.

    With `refresh_every` n, the reference follows the policy after every n-th step: one iteration of DeepSeekMath's
    Algorithm 1 is n steps. It becomes `mix` · πθ + (1 - `mix`) · π_ref, weight by weight: with 1 the policy as it
    stands, with less the soft update of TR-DPO (arXiv 2404.09656), TRL's `ref_model_mixup_alpha`.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Scorer | None = None,
        *,
        critic: Critic | None = None,
        refresh_every: int | None = None,
        mix: float = 1.0,
    ) -> None:
        if not 0 < mix <= 1:
            raise ValueError(f"mix is the policy's share in the refreshed reference: above 0, at most 1, not {mix}")
        if refresh_every and reference is not None and _shapes(reference) != _shapes(policy):
            raise ValueError("a reference of another size than the policy cannot be renewed from it")
        self.policy = policy
        self.reference = reference
        self.critic = critic
        self.refresh_every = refresh_every
        self.mix = mix
        self.steps = 0  # finished ones

    @classmethod
    def of(
        cls,
        policy: Policy,
        objective: Objective,
        *,
        advantage: Advantage | None = None,
        reference: Scorer | None = None,
        critic: Critic | None = None,
        refresh_every: int | None = None,
        mix: float = 1.0,
    ) -> "Models":
        """With what objective and advantage need: unless given, the reference is the policy as it is now, and the
        critic a copy of it with a value head.

        Raises ValueError for a reference or critic that neither of them needs.
        """
        needs = requirements_of(advantage, objective)
        given = {"reference": (reference, needs.reference), "critic": (critic, needs.values)}
        if idle := [name for name, (model, needed) in given.items() if model is not None and not needed]:
            raise ValueError(f"nothing needs the {' and the '.join(idle)}: neither the objective nor the advantage")
        if needs.reference and reference is None:
            reference = frozen(policy)
        if needs.values and critic is None:
            critic = own_model(policy)
        return cls(policy, reference, critic=critic, refresh_every=refresh_every, mix=mix)

    @property
    def version(self) -> int:
        """Optimiser steps taken, by policy and critic together: as long as it stays, nothing has moved."""
        return self.policy.version + (0 if self.critic is None else self.critic.optimiser.steps)

    def check(self, needs: Requires) -> None:
        """Raise `ValueError` if something is needed that is not here."""
        missing = [
            name
            for name, needed, model in (
                ("reference", needs.reference, self.reference),
                ("critic", needs.values, self.critic),
            )
            if needed and model is None
        ]
        if missing:
            built = "`Models.of(policy, objective, advantage=advantage)` makes what is needed"
            raise ValueError(f"the objective or the advantage needs a {' and a '.join(missing)}: {built}")

    def update(self, batch: Batch, objective: Objective) -> Update:
        """One inner pass over a batch: the critic's, then the policy's.

        While the critic warms up, in the first `critic.warmup` steps, the policy's is left out: no tokens either.
        """
        if self.critic is None:
            return self.policy.update(batch, objective)
        metrics = self.critic.update(batch)
        if self.steps < self.critic.warmup:
            return Update(metrics=metrics, tokens={})
        update = self.policy.update(batch, objective)
        return Update(metrics={**update.metrics, **metrics}, tokens=update.tokens)

    @torch.no_grad()
    def refresh(self, step: int) -> None:
        """A step is finished; if an iteration ends with it, π_ref ← mix · πθ + (1 - mix) · π_ref."""
        self.steps += 1
        if self.reference is None or not self.refresh_every or step % self.refresh_every:
            return
        # Parameters, not the state dict: there a tied weight stands twice, and would be mixed twice.
        ours, theirs = self.policy.model.parameters(), self.reference.forward.model.parameters()
        for weight, reference in zip(ours, theirs, strict=True):
            reference.lerp_(weight, self.mix)

    def state(self) -> dict[str, Any]:
        """What the saved policy folder does not hold; the reference in full, for the policy has moved away from it."""
        return {
            "policy": self.policy.state(),
            "reference": None if self.reference is None else dict(self.reference.forward.model.state_dict()),
            "critic": None if self.critic is None else self.critic.state(),
            "steps": self.steps,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        wanted = {"reference": self.reference, "critic": self.critic}
        for name, model in wanted.items():
            if model is not None and state[name] is None:
                raise ValueError(f"a {name} is needed, and the saved state holds none")
        self.policy.load_state(state["policy"])
        self.steps = state["steps"]
        if self.reference is not None:
            self.reference.forward.model.load_state_dict(state["reference"])
        if self.critic is not None:
            self.critic.load_state(state["critic"])


def _shapes(scorer: Scorer) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in scorer.forward.model.parameters()]
