"""The reference policy: a frozen copy of the policy, or another model folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outdo.models.adapter import changes_nothing, has_adapter, on_same_base, switch, trained_weights
from outdo.models.choose_forward import choose_forward
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.policy import Policy
from outdo.models.rounding import probe_tokens
from outdo.models.scorer import Scorer
from outdo.utils.errors import ModelError
from outdo.utils.sharded_tensors import divided_like


class Reference(Scorer):
    """A model that only computes log-probabilities (`Scorer.logprobs`), and can follow the policy."""

    def refresh(self, policy: Policy, mix: float) -> None:
        """Update the weights from the policy's: mix · πθ + (1 - mix) · π_ref, weight by weight."""
        # Parameters, not the state dict: that has a tied weight twice, which would be mixed twice.
        for weight, copied in zip(policy.model.parameters(), self.forward.model.parameters(), strict=True):
            copied.lerp_(weight, mix)

    def state(self) -> dict[str, Any]:
        """Return the weights in full, as the policy differs from them."""
        return dict(self.forward.model.state_dict())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        of_reference = self.forward.model.state_dict()
        self.forward.model.load_state_dict(
            {name: divided_like(value, of_reference.get(name)) for name, value in state.items()}
        )


class AdapterReference(Reference):
    """The policy's base, without the adapter or with a copy of it; no frozen weight is copied.

    A new adapter computes nothing: without it the model is the policy as it was at the start of the run, bit for bit.
    An adapter that was trained before the run, or whose initialisation changed the base, has to be copied; so has that
    of the policy when the reference is updated.
    """

    def __init__(self, policy: Policy) -> None:
        model = on_same_base(policy.model)
        super().__init__(policy.forward.with_model(model), policy.batch_sizes, policy.world)
        self.policys = list(trained_weights(policy.model).values())
        self.own = list(trained_weights(model).values())
        self.is_copy = False
        tokens = torch.tensor([probe_tokens(model.config.get_text_config().vocab_size)], device=policy.device)
        self._set([] if changes_nothing(policy.forward, tokens) else self.policys)

    def refresh(self, policy: Policy, mix: float) -> None:
        """Copy the policy's adapter."""
        assert mix == 1, "the product of mixed matrices is not the mixture of the products"
        if self.is_copy:
            for weight, copied in zip(self.policys, self.own, strict=True):
                copied.copy_(weight)
        else:
            self._set(self.policys)

    def state(self) -> dict[str, Any]:
        """Return the copy of the adapter, if there is one."""
        return {"adapter": [copied.detach() for copied in self.own] if self.is_copy else []}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._set(state["adapter"])

    def _set(self, weights: Sequence[Tensor]) -> None:
        """Use a copy of these weights of the adapter; if there are none, do without an adapter."""
        self.is_copy = len(weights) > 0
        switch(self.forward.model, on=self.is_copy)
        for copied, new, policys in zip(self.own, weights or self.policys, self.policys, strict=True):
            # Without an adapter nothing reads the weights; those of the policy take no further memory.
            copied.data = new.detach().to(copied.device, copy=True) if self.is_copy else policys.data


def frozen(policy: Policy) -> Reference:
    """Return a model that only computes log-probabilities, with the policy's weights as they are now."""
    if has_adapter(policy.model):
        return AdapterReference(policy)
    copied = policy.forward.sharding.copied(policy.model)
    return Reference(policy.forward.with_model(copied.requires_grad_(False)), policy.batch_sizes, policy.world)


def load_reference(policy: Policy, path: str | Path) -> Reference:
    """Load another model folder as a reference or a teacher; of any size, with the policy's vocabulary.

    Raises `ModelError` if there is no such model, or if it has another vocabulary.
    """
    if load_tokenizer(path, stop_token_ids=(0,)).get_vocab() != policy.tokenizer.get_vocab():
        raise ModelError(
            f"the reference {path} has another vocabulary than the policy: the same token ids are other words to it"
        )
    model = load_model(path, policy.device, policy.dtype, world=policy.world).requires_grad_(False)
    return Reference(choose_forward(model, precision=policy.forward.precision_name), policy.batch_sizes, policy.world)
