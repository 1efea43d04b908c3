"""Which weights sampled which token, and how many steps they are behind."""

from collections import Counter
from collections.abc import Mapping, Sequence

from outdo.types import Completion, Group, Rollout
from outdo.utils.errors import EngineError
from outdo.utils.text import counted


def token_versions(sampled: Completion | Rollout) -> tuple[int, ...]:
    """Return for each token of an answer the number of optimiser steps before it was sampled."""
    return (sampled.policy_version,) * len(sampled.token_ids) if sampled.versions is None else sampled.versions


def staleness(groups: Sequence[Group], versions: Mapping[int, int], *, step: int, lag: int) -> Counter[int]:
    """Return how many tokens were sampled by weights so many steps behind those that `step` begins with.

    Tokens that an environment wrote have no weights, and are not counted.

    `versions` has the number of optimiser steps after each training step. Raises `EngineError` for an answer with
    weights that are more than `lag` steps behind.
    """
    allowed = {version: step - 1 - after for after, version in sorted(versions.items()) if after >= step - 1 - lag}
    sampled_by: Counter[int] = Counter()
    for group in groups:
        for rollout in group.rollouts:
            of_each = zip(token_versions(rollout), rollout.loss_mask, strict=True)
            of_tokens = Counter(version for version, is_sampled in of_each if is_sampled)
            for version in {rollout.policy_version, *of_tokens}:
                if version not in allowed:
                    raise EngineError(
                        f"step {step}, question {group.prompt.id}: an answer was sampled from the weights after "
                        f"{counted(version, 'optimiser step')}; at most {lag} training steps behind are those after "
                        f"{', '.join(map(str, allowed))}"
                    )
                sampled_by[allowed[version]] += of_tokens[version]
    return sampled_by
