"""Batches: rows of unequal length as tensors, rows packed into micro-batches, and gradients accumulated over them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from outdo.utils.errors import UserError

MicroBatch = TypeVar("MicroBatch")
Loss = TypeVar("Loss")
Result = TypeVar("Result")


def pack_by_tokens(
    rows: Sequence[int], lengths: Sequence[int], groups: Sequence[int], budget: int, *, whole_groups: bool
) -> list[list[int]]:
    """Split row numbers into micro-batches of at most `budget` tokens each, padding included; a row is never cut.

    `lengths` and `groups` are indexed by row number; rows of a group are neighbours. Whole groups stay together, so
    that a prompt is computed once; a group that alone exceeds the budget is cut, unless `whole_groups` forbids it.
    """
    units: list[list[int]] = []
    for members in group_neighbours(rows, groups):
        fits = whole_groups or len(members) * max(lengths[row] for row in members) <= budget
        units.extend([members] if fits else [[row] for row in members])
    micro_batches: list[list[int]] = []
    longest = 0
    for unit in units:
        own = max(lengths[row] for row in unit)
        longest = max(longest, own)
        if micro_batches and (len(micro_batches[-1]) + len(unit)) * longest <= budget:
            micro_batches[-1].extend(unit)
        else:
            micro_batches.append(list(unit))
            longest = own
    return micro_batches


def group_neighbours(rows: Sequence[int], groups: Sequence[int]) -> list[list[int]]:
    """Split row numbers where the group changes."""
    return [list(members) for _, members in groupby(rows, key=lambda row: groups[row])]


def accumulate(
    micro_batches: Iterable[MicroBatch],
    forward: Callable[[MicroBatch], tuple[Loss, Result]],
    backward: Callable[[Loss], None],
) -> list[Result]:
    """Run forward and backward pass of one micro-batch after the other; gradients add up in the weights.

    `forward` returns what `backward` needs, and a result to keep. Only one micro-batch's graph exists at a time.
    """
    results: list[Result] = []
    for micro_batch in micro_batches:
        loss, result = forward(micro_batch)
        backward(loss)
        del loss
        results.append(result)
    return results


ALLOWED = {"advantages": ("[B, T]", "[B]"), "group": ("[B]",), "rewards": ("[B]",)}
"""The shapes of arguments of `Batch.of` that are not [B, T]."""


def pad_rows(rows: Sequence[Sequence[float]], dtype: torch.dtype, starts: Sequence[int] = ()) -> Tensor:
    """Stack rows of values into [B, T], with zeros to their right, and with `starts` zeros to their left."""
    if not rows:
        return torch.zeros(0, 1, dtype=dtype)
    first = torch.tensor(starts or [0] * len(rows))[:, None]  # [B, 1]
    last = first + torch.tensor([len(row) for row in rows])[:, None]  # [B, 1]
    column = torch.arange(int(last.max()))  # [T]
    inside = (first <= column) & (column < last)  # [B, T]
    flat = torch.tensor([*chain.from_iterable(rows)], dtype=dtype)  # one tensor for each row would take longer
    return torch.zeros(inside.shape, dtype=dtype).masked_scatter(inside, flat)


def pad_routes(rows: Sequence[Tensor | None], width: int) -> Tensor | None:
    """Stack routes [t, R, K] into [B, width, R, K], with -1 after each and for None; None if all are None."""
    known = [row for row in rows if row is not None]
    if not known:
        return None
    stacked = known[0].new_full((len(rows), width, *known[0].shape[1:]), -1)
    for routes, row in zip(stacked, rows, strict=True):
        if row is not None:
            routes[: len(row)] = row
    return stacked


def token_fields(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    group: Sequence[int],
) -> dict[str, Any]:
    """Return the fields of a `Batch` that follow from token ids, from groups, and from which tokens were sampled.

    `masks` has an entry for each token of a completion: True where the policy sampled it.
    """
    starts = [len(prompt) for prompt in prompts]
    rows = [(*prompt, *completion) for prompt, completion in zip(prompts, completions, strict=True)]
    token_ids = pad_rows(rows, torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    sampled = pad_rows(masks, torch.bool, starts)
    return {
        "token_ids": token_ids,
        "attention_mask": torch.arange(token_ids.shape[1]) < lengths[:, None],
        "loss_mask": sampled,
        "turn": turn_numbers(sampled),
        "prompt_lengths": torch.tensor(starts, dtype=torch.int64),
        "group": torch.tensor(group, dtype=torch.int64),
    }


def turn_numbers(sampled: Tensor) -> Tensor:
    """Number the turns of each row, from 0: runs of sampled tokens; -1 at all other tokens. [B, T] bool -> int32"""
    begins = sampled.clone()
    begins[:, 1:] &= ~sampled[:, :-1]
    return (begins.cumsum(1, dtype=torch.int32) - 1).where(sampled, -1)


def previous_columns(forks: Sequence[Sequence[tuple[int, int]]], width: int) -> Tensor | None:
    """Return for each of `width` columns of a row the column before it in its conversation; None if no row has forks.

    A fork (t, before) says that token t follows token `before`; -1 is none. Others follow the one at t - 1. [B, T]
    """
    if not any(forks):
        return None
    columns = torch.arange(width).repeat(len(forks), 1) - 1
    for row, of_row in zip(columns, forks, strict=True):
        for column, before in of_row:
            row[column] = before
    return columns


def conversation_columns(previous: Sequence[int]) -> list[list[int]]:
    """Return the columns of each conversation of a row, of which the first goes to the first fork.

    `previous` has the column before each of the row's; see `previous_columns`. Conversations share the columns before
    their forks.
    """
    forks = [column for column, before in enumerate(previous) if before != column - 1]
    found: list[list[int]] = []
    for start, end in pairwise([0, *forks, len(previous)]):
        earlier = next((columns for columns in found if previous[start] in columns), [])
        kept = earlier.index(previous[start]) + 1 if earlier else 0
        found.append([*earlier[:kept], *range(start, end)])
    return found


def tokens_read(attention_mask: Tensor, previous: Tensor | None) -> list[int]:
    """Return how many tokens a model reads for each row: all of each of its conversations."""
    lengths: list[int] = attention_mask.sum(1).tolist()
    if previous is None:
        return lengths
    rows = zip(previous.tolist(), lengths, strict=True)
    return [sum(map(len, conversation_columns(row[:length]))) for row, length in rows]


def counted(loss_mask: Tensor, group: Tensor) -> dict[str, int]:
    """Return the fields of `Totals`, counted from a mask [B, T] and groups [B]."""
    rows = loss_mask.any(1)
    return {
        "rows": len(loss_mask),
        "sequences": int(rows.sum()),
        "tokens": int(loss_mask.sum()),
        "groups": len(group[rows].unique()),
        "padded_length": loss_mask.shape[1],
    }


def reward_fields(groups: Sequence[Any], starts: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a `Batch` that follow from how its groups of rollouts were rewarded and how these ended."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    baselines = [group.baseline for group in groups for _ in group.rollouts]
    parts = sorted({name for rollout in rollouts for name in rollout.reward_parts})
    scored = _column(rollouts, "scored", torch.bool)
    return {
        "rewards": _column(rollouts, "reward", torch.float32).where(scored, 0.0),
        "scored": scored,
        "truncated": _column(rollouts, "truncated", torch.bool),
        "temperature": _column(rollouts, "temperature", torch.float32),
        "right": _verdicts(rollouts),
        "baselines": None if None in baselines else floats(baselines),
        "reward_parts": {name: floats([rollout.reward_parts.get(name) for rollout in rollouts]) for name in parts},
        "token_rewards": _padded_token_rewards(rollouts, starts),
    }


def _column(rollouts: Sequence[Any], name: str, dtype: torch.dtype) -> Tensor:
    return torch.tensor([getattr(rollout, name) for rollout in rollouts], dtype=dtype)


def _verdicts(rollouts: Sequence[Any]) -> Tensor | None:
    """Return which rollouts are right, [B]: one without a verdict is not; None if no rollout has a verdict."""
    if all(rollout.right is None for rollout in rollouts):
        return None
    return torch.tensor([rollout.right is True for rollout in rollouts])


def _padded_token_rewards(rollouts: Sequence[Any], starts: Sequence[int]) -> Tensor | None:
    if all(rollout.token_rewards is None for rollout in rollouts):
        return None
    return pad_rows([_token_rewards(rollout) for rollout in rollouts], torch.float32, starts)


def _token_rewards(rollout: Any) -> Sequence[float]:
    """Return the rewards of a rollout's tokens; where it has none, its reward on the last token that was sampled."""
    rewards = [0.0] * len(rollout.token_ids)
    if not rollout.scored:
        return rewards
    if rollout.token_rewards is not None:
        return rollout.token_rewards
    sampled = [t for t, sampled in enumerate(rollout.loss_mask) if sampled]
    for t in sampled[-1:]:
        rewards[t] = rollout.reward
    return rewards


def floats(values: Sequence[float | None]) -> Tensor:
    """Return the values as float32, with NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float32)


def _check_tensors(function: str, mask: Tensor, advantages: Tensor, tensors: Mapping[str, Tensor | None]) -> None:
    """Raise `UserError` with one sentence for each argument of `function` that has a wrong shape or dtype.

    `mask` is [B, T] bool, `advantages` [B, T] or [B]. Of the others `group` and `rewards` are [B], and `group` and
    `token_ids` hold integers.
    """
    if mask.dim() != 2:
        raise UserError([f"{function}: mask has shape {list(mask.shape)}, expected [B, T]"])
    shapes = {"[B, T]": list(mask.shape), "[B]": [len(mask)]}
    wrong = _wrong_dtype("mask", mask, "bool")
    for name, value in {"advantages": advantages, **tensors}.items():
        if value is None:
            continue
        allowed = ALLOWED.get(name, ("[B, T]",))
        if list(value.shape) not in [shapes[shape] for shape in allowed]:
            wanted = " or ".join(f"{shape} = {shapes[shape]}" for shape in allowed)
            wrong.append(f"{name} has shape {list(value.shape)}, expected {wanted}")
        wrong += _wrong_dtype(name, value, "int" if name in ("token_ids", "group") else "float")
    wrong = wrong or _scattered(tensors.get("group"))
    if wrong:
        raise UserError([f"{function}: {each}" for each in wrong])


def plain_fields(
    function: str, mask: Tensor, advantages: Tensor, tensors: Mapping[str, Tensor | None]
) -> dict[str, Any]:
    """Return the fields of a `Batch`, without its totals, from plain tensors; see `Batch.of` for the defaults.

    Raises `UserError` with one sentence for each argument of `function` that has a wrong shape or dtype.
    """
    _check_tensors(function, mask, advantages, tensors)
    column = torch.arange(mask.shape[1], device=mask.device)
    number = torch.arange(len(mask), device=mask.device)
    starts = mask.int().argmax(1)  # the first True of a row; 0 where there is none
    old = tensors["old_logprobs"]
    defaults = {
        "token_ids": (1 + number[:, None] * mask.shape[1] + column) * (column >= starts[:, None]),
        "rollout_logprobs": advantages.new_full(mask.shape, math.nan) if old is None else old,
        "group": number,
        "rewards": advantages.new_zeros(len(mask)),
    }
    return {
        **defaults,
        **{name: value for name, value in tensors.items() if value is not None},
        "attention_mask": column <= (column * mask).amax(1, keepdim=True),
        "loss_mask": mask,
        "turn": turn_numbers(mask),
        "prompt_lengths": starts,
        "scored": torch.ones_like(number, dtype=torch.bool),
        "truncated": torch.zeros_like(number, dtype=torch.bool),
        "temperature": advantages.new_ones(len(mask)),
        "advantages": advantages[:, None] * mask if advantages.dim() == 1 else advantages,
    }


def _scattered(group: Tensor | None) -> list[str]:
    if group is None or len(group.unique()) == len(group.unique_consecutive()):
        return []
    return ["the rows of a group must be neighbours in `group`"]


def _wrong_dtype(name: str, value: Tensor, expected: str) -> list[str]:
    kind = "bool" if value.dtype == torch.bool else "float" if value.dtype.is_floating_point else "int"
    return [] if kind == expected else [f"{name} has dtype {str(value.dtype).removeprefix('torch.')}, not {expected}"]
