"""Groups of rollouts as a training state: JSON and tensors, for batches that are sampled and not trained yet."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby, islice
from typing import Any

import torch

from outdo.rollouts.in_turn import KnownPrompts
from outdo.types import FinishReason, Group, Prompt, Rollout
from outdo.types.inputs import same_inputs

OF_TOKENS = {"token_ids": torch.int64, "loss_mask": torch.bool, "logprobs": torch.float64}
"""The fields of a rollout with a value for each token. Those of all rollouts are one tensor."""


def state_of_groups(groups: Sequence[Group], known: KnownPrompts) -> dict[str, Any]:
    """Return the groups in the form that `state_file.pack` takes. Of a prompt in `known` only the id is saved."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    others = [field.name for field in fields(Rollout) if field.name not in (*OF_TOKENS, "versions")]
    tokens = {
        name: torch.tensor([value for rollout in rollouts for value in getattr(rollout, name)], dtype=dtype)
        for name, dtype in OF_TOKENS.items()
    }
    return {
        "groups": [
            {"prompt": _state_of_prompt(group.prompt, known), "size": len(group.rollouts), "baseline": group.baseline}
            for group in groups
        ],
        "rollouts": [{name: getattr(rollout, name) for name in others} for rollout in rollouts],
        "lengths": [len(rollout.token_ids) for rollout in rollouts],
        "versions": _state_of_versions(rollouts),
        **tokens,
    }


def groups_of_state(state: Mapping[str, Any], known: KnownPrompts) -> list[Group]:
    """Return the groups whose state was saved. Raises `KeyError` for a prompt that `known` lacks."""
    tokens = {name: iter(state[name].tolist()) for name in OF_TOKENS}
    versions = state["versions"]
    rollouts = (
        _rollout(
            {**saved, "versions": versions and _versions_of(versions[index])},
            {name: tuple(islice(values, length)) for name, values in tokens.items()},
        )
        for index, (saved, length) in enumerate(zip(state["rollouts"], state["lengths"], strict=True))
    )
    return [
        Group(
            prompt=_prompt(group["prompt"], known),
            rollouts=tuple(islice(rollouts, group["size"])),
            baseline=group["baseline"],
        )
        for group in state["groups"]
    ]


def _state_of_versions(rollouts: Sequence[Rollout]) -> list[list[list[int]] | None] | None:
    """Return for each rollout its versions, and how many tokens have each; None if no answer went on across updates."""
    if all(rollout.versions is None for rollout in rollouts):
        return None
    return [
        None
        if rollout.versions is None
        else [[version, len(list(same))] for version, same in groupby(rollout.versions)]
        for rollout in rollouts
    ]


def _versions_of(runs: Sequence[Sequence[int]] | None) -> tuple[int, ...] | None:
    return None if runs is None else tuple(version for version, tokens in runs for _ in range(tokens))


def _rollout(others: Mapping[str, Any], tokens: Mapping[str, Any]) -> Rollout:
    rewards = others["token_rewards"]
    typed = {
        "finish_reason": FinishReason(others["finish_reason"]),
        "token_rewards": None if rewards is None else tuple(rewards),
        "forks": tuple(map(tuple, others["forks"])),
    }
    return Rollout(**{**others, **tokens, **typed})


def _state_of_prompt(prompt: Prompt, known: KnownPrompts) -> dict[str, Any]:
    """Return the id of a prompt, and its text, tokens and inputs if an environment has added to them."""
    read = known[prompt.id]
    inputs = {} if same_inputs(prompt.inputs, read.inputs) else {"inputs": dict(prompt.inputs)}
    changed = {} if prompt == read else {"text": prompt.text, "token_ids": prompt.token_ids}
    return {"id": prompt.id, **changed, **inputs}


def _prompt(state: Mapping[str, Any], known: KnownPrompts) -> Prompt:
    changed = {name: state[name] for name in ("text", "inputs") if name in state}
    if "token_ids" in state:
        changed["token_ids"] = tuple(state["token_ids"])
    prompt = known[state["id"]]
    return replace(prompt, **changed) if changed else prompt
