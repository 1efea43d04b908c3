"""The reference policy: a frozen copy of the policy, or another model folder."""

import copy
from pathlib import Path

from outdo.models.attention.forward import Forward
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.policy import Policy
from outdo.models.scorer import Scorer
from outdo.utils.errors import ModelError


def frozen(policy: Policy) -> Scorer:
    """Copy the policy's weights into a model that only computes log-probabilities."""
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return Scorer(policy.forward.with_model(model), policy.batch_sizes, policy.pool)


def load_reference(policy: Policy, path: str | Path) -> Scorer:
    """Load another model folder as a reference or a teacher; of any size, with the policy's vocabulary.

    Raises `ModelError` if there is no such model, or if it has another vocabulary.
    """
    if load_tokenizer(path, stop_token_ids=(0,)).get_vocab() != policy.tokenizer.get_vocab():
        raise ModelError(
            f"the reference {path} has another vocabulary than the policy: the same token ids are other words to it"
        )
    model = load_model(path, policy.device, policy.model.dtype).requires_grad_(False)
    return Scorer(Forward.choose(model, precision=policy.forward.precision_name), policy.batch_sizes, policy.pool)
