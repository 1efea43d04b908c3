"""All models of a run together: what a checkpoint saves and a resumed run restores."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.models.critic import Critic, own_model
from outdo.models.policy import Policy
from outdo.models.reference import AdapterReference, Reference, frozen
from outdo.models.scorer import Scorer
from outdo.models.teacher import Teacher, read_by
from outdo.models.teacher_sums import NO_HEADS, TeacherHead
from outdo.types import Batch, Update
from outdo.utils.sharded_tensors import is_sharded
from outdo.utils.timing import span


class Models:
    """The policy πθ, the reference π_ref if something requires one, and the critic V if an advantage requires one.

    With `refresh_every` n, the reference is updated from the policy after every n-th step: one iteration of
    DeepSeekMath's Algorithm 1 is n steps. It becomes `mix` · πθ + (1 - `mix`) · π_ref, weight by weight: with 1 a copy
    of the policy, with less the soft update of TR-DPO (arXiv 2404.09656), TRL's `ref_model_mixup_alpha`. A policy with
    an adapter has `mix` 1: its weights are factors, and a mixture of factors is not the mixture of their products.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Reference | None = None,
        *,
        critic: Critic | None = None,
        teachers: Sequence[Teacher] = (),
        refresh_every: int | None = None,
        mix: float = 1.0,
    ) -> None:
        if not 0 < mix <= 1:
            raise ValueError(f"mix is the policy's share in the refreshed reference: above 0, at most 1, not {mix}")
        if mix < 1 and isinstance(reference, AdapterReference):
            raise ValueError(f"mix = {mix}: the weights of adapters cannot be mixed; use 1")
        if refresh_every and reference is not None and _shapes(reference) != _shapes(policy):
            raise ValueError("a reference of another size than the policy cannot be updated from it")
        self.policy = policy
        self.reference = reference
        self.critic = critic
        self.teachers = teachers
        self.refresh_every = refresh_every
        self.mix = mix
        self.steps = 0  # finished training steps
        self.heads: Mapping[str, TeacherHead] = NO_HEADS  # of the teachers, as they were when they read the batch

    @classmethod
    def of(
        cls,
        policy: Policy,
        objective: Objective,
        *,
        advantage: Advantage | None = None,
        requires: Requires | None = None,
        reference: Reference | None = None,
        critic: Critic | None = None,
        teachers: Sequence[Teacher] = (),
        refresh_every: int | None = None,
        mix: float = 1.0,
    ) -> "Models":
        """Make the models that objective and advantage require.

        Unless given, the reference is the policy as it is now (`frozen`), the critic a copy of it with a value head.
        Teachers have to be given. `requires` is what the two need together, if the caller knows it already.

        Raises ValueError for models that neither of them requires, TypeError for what is no objective.
        """
        if not hasattr(objective, "prepare"):
            name = getattr(objective, "__name__", None)
            description = repr(objective) if name is None else f"the function {name}; did you mean {name}()?"
            raise TypeError(f"Models.of: expected an objective such as outdo.grpo(beta=0.0), found {description}")
        needs = requirements_of(advantage, objective) if requires is None else requires
        _check_needed(needs, reference, critic, teachers)
        if needs.reference and reference is None:
            reference = frozen(policy)
        if needs.values and critic is None:
            critic = own_model(policy)
        return cls(policy, reference, critic=critic, teachers=teachers, refresh_every=refresh_every, mix=mix)

    @property
    def version(self) -> int:
        """Optimiser steps taken by policy and critic together: as long as it stays the same, no weight has changed."""
        return self.policy.version + (0 if self.critic is None else self.critic.optimiser.steps)

    @property
    def is_divided(self) -> bool:
        """Whether each replica holds only a part of what a checkpoint holds: not if all that is divided is frozen."""
        trained = [self.policy, *filter(None, [self.critic])]
        of_reference = {} if self.reference is None else self.reference.state()
        return any(model.optimiser.is_sharded for model in trained) or any(map(is_sharded, of_reference.values()))

    def check(self, required: Requires) -> None:
        """Raise `ValueError` if a required model is missing."""
        missing = [
            name
            for name, needed, model in (
                ("reference", required.reference, self.reference),
                ("critic", required.values, self.critic),
            )
            if needed and model is None
        ]
        if missing:
            hint = "`Models.of(policy, objective, advantage=advantage)` makes what is needed"
            raise ValueError(f"the objective or the advantage needs a {' and a '.join(missing)}: {hint}")
        if required.needs_teacher and not self.teachers:
            load = "Models.of(..., teachers=[outdo.Teacher.load(policy, path)])"
            raise ValueError(f"the objective or the advantage needs a teacher: {load}")

    def score(self, batch: Batch, required: Requires, *, passes: int) -> Batch:
        """Compute old log-probabilities and sums, reference log-probabilities and values where they are required.

        In a single pass of a single optimiser step π_old is the policy itself: the forward pass of the training gives
        `old_logprobs` as well. Only a piece that requires them earlier causes a forward pass of their own.
        """
        if batch.totals.tokens == 0:
            return batch
        if required.old_logprobs or required.old_sums or passes * self.policy.batch_sizes.minibatches > 1:
            with span("old"):
                scores = self.policy.measure(batch, required.old_sums)
            batch = batch.with_(old_logprobs=scores.logprobs, old_sums=scores.sums)
        if required.reference and self.reference is not None:
            with span("reference"):
                batch = batch.with_(ref_logprobs=self.reference.logprobs(batch))
        if self.teachers:
            batch = self._taught(batch, states=bool(required.divergences))
        if required.values and self.critic is not None:
            with span("values"):
                ends = self.critic.end_values(batch) if required.end_values else None
                batch = batch.with_(values=self.critic.values(batch), end_values=ends)
        return batch

    def _taught(self, batch: Batch, *, states: bool) -> Batch:
        """Return the batch with what the teachers say of it, and keep their output layers as they are now."""
        with span("teachers"):
            self.heads = {teacher.name: teacher.head() for teacher in self.teachers}
            return read_by(self.teachers, batch, states=states)

    def update(self, batch: Batch, objective: Objective) -> Update:
        """Make one pass over a batch: first update the critic, then the policy.

        In the first `critic.warmup` steps the policy is not updated, and the result has no tokens.
        """
        if self.critic is None:
            return self.policy.update(batch, objective, self.heads)
        metrics = self.critic.update(batch)
        if self.steps < self.critic.warmup:
            return Update(metrics=metrics, tokens={})
        update = self.policy.update(batch, objective, self.heads)
        return Update(metrics={**update.metrics, **metrics}, tokens=update.tokens)

    @torch.no_grad()
    def refresh(self, step: int) -> None:
        """Count a finished step; if an iteration ends with it, π_ref ← mix · πθ + (1 - mix) · π_ref."""
        self.steps += 1
        if self.reference is None or not self.refresh_every or step % self.refresh_every:
            return
        self.reference.refresh(self.policy, self.mix)

    def state(self) -> dict[str, Any]:
        """Return what the saved policy folder does not hold."""
        return {
            "policy": self.policy.state(),
            "reference": None if self.reference is None else self.reference.state(),
            "critic": None if self.critic is None else self.critic.state(),
            "steps": self.steps,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        for name, model in (("reference", self.reference), ("critic", self.critic)):
            if model is not None and state[name] is None:
                raise ValueError(f"a {name} is needed, and the saved state holds none")
        self.policy.load_state(state["policy"])
        self.steps = state["steps"]
        if self.reference is not None:
            self.reference.load_state(state["reference"])
        if self.critic is not None:
            self.critic.load_state(state["critic"])


def _check_needed(
    needs: Requires, reference: Reference | None, critic: Critic | None, teachers: Sequence[Teacher]
) -> None:
    """Raise `ValueError` for models that nothing needs."""
    is_teacher = any(reference is not None and teacher.reads(reference) for teacher in teachers)
    unused = {
        "reference": reference is not None and not (needs.reference or is_teacher),
        "critic": critic is not None and not needs.values,
        "teachers": bool(teachers) and not needs.needs_teacher,
    }
    if any(unused.values()):
        named = " and the ".join(name for name, is_unused in unused.items() if is_unused)
        raise ValueError(f"nothing needs the {named}: neither the objective nor the advantage")


def _shapes(scorer: Scorer) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in scorer.forward.model.parameters()]
