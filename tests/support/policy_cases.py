"""What tests of the policy and of its replicas share: batches that are ready for an update, and what it did."""

from typing import Any

import torch
from engine_cases import fresh, ragged_groups
from torch import Tensor, nn

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.objectives.weights import token_mean
from outdo.models.policy import Policy
from outdo.types import Batch, Group, Update
from outdo.utils.sharded_tensors import whole

ADVANTAGE = per_token(group_standardised)
ALL_TERMS = ComposedObjective(surrogate=clip(low=0.1, high=0.1), beta=0.1, entropy_bonus=0.01, weight=token_mean)


def prepared(groups: list[Group] | None = None, *, drift: float = 0.3, policy: Policy | None = None) -> Batch:
    """A ragged batch ready for an update: advantages, and a past and a reference that differ from the policy."""
    batch = Batch.from_groups(groups or ragged_groups())
    now = (policy or fresh()).logprobs(batch)
    noise = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(3), dtype=now.dtype)
    past, reference = ((now + drift * each) * batch.loss_mask for each in (noise, noise.roll(1, 0)))
    return ADVANTAGE(batch).with_(old_logprobs=past, ref_logprobs=reference)


def two_groups(vocabulary: int = 264) -> Batch:
    """Two groups of four answers of four tokens, with advantages."""
    prompts = [(5, 6, 7)] * 4 + [(8, 9)] * 4
    completions = [[token % vocabulary for token in (20 + n, 21, 22 + n, 23)] for n in range(8)]
    made = Batch.of_tokens(prompts, completions, group=[0] * 4 + [1] * 4)
    advantages = torch.tensor([1.0, -1.0] * 4)[:, None] * made.loss_mask
    return made.with_(advantages=advantages, ref_logprobs=torch.zeros_like(advantages))


def updated(
    policy: Policy, batch: Batch, objective: ComposedObjective = ALL_TERMS, **options: Any
) -> tuple[Update, Tensor]:
    """The update, and the gradient of all weights that the optimiser was handed."""
    gradients = []
    step = policy.optimiser.step

    def spy(loss: float) -> dict[str, float]:
        grads = [whole(weight.grad) for weight in policy.model.parameters()]
        gradients.append(torch.cat([grad.flatten().clone() for grad in grads]))
        return step(loss)

    policy.optimiser.step = spy
    update = policy.update(batch, objective, **options)
    policy.optimiser.step = step
    return update, torch.stack(gradients).sum(0)


def double(policy: Policy) -> Policy:
    return Policy(policy.model.double(), policy.tokenizer, batch_sizes=policy.batch_sizes)


def weights(policy: Policy) -> Tensor:
    return torch.cat([whole(weight.detach()).flatten().clone() for weight in policy.model.parameters()])


class WithoutBackward(nn.Linear):
    """A layer whose product has no backward pass."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).detach()


def frozen_numbers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the frozen weights by name; those that torchao quantised as it computes with them."""
    frozen: dict[str, Any] = {name: each for name, each in model.named_parameters() if not each.requires_grad}
    return {name: (each.dequantize() if hasattr(each, "qdata") else each).clone() for name, each in frozen.items()}
