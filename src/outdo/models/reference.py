"""The reference policy: a frozen copy of the policy, or another model folder."""

import copy
from pathlib import Path

from outdo.models.attention.forward import Forward
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.policy import Policy
from outdo.models.scorer import Scorer
from outdo.utils.errors import ModelError


def frozen(policy: Policy) -> Scorer:
    """A copy of the policy's weights that is only asked for log-probabilities."""
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return Scorer(policy.forward.on(model), policy.batch_sizes, policy.pool)


def load_reference(policy: Policy, path: str | Path) -> Scorer:
    """Another model folder, to be a reference or a teacher: any size, but the policy's vocabulary.

    Raises `ModelError` if there is no such model, or if the same tokens mean something else to it.
    """
    if load_tokenizer(path, stop_token_ids=(0,)).get_vocab() != policy.tokenizer.get_vocab():
        raise ModelError(f"the reference {path} has another vocabulary than the policy, and would read other words")
    model = load_model(path, policy.device, policy.model.dtype).requires_grad_(False)
    return Scorer(Forward.probe(model, precision=policy.forward.width), policy.batch_sizes, policy.pool)
