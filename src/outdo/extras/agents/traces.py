"""Read the traces of OpenEnv: the calls that an agent made elsewhere, with the token ids that the engine sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.utils.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """A conversation of a trace. Index t of `token_ids`, `loss_mask` and `logprobs` is about the same token."""

    prompt_ids: tuple[int, ...]  # before the first sampled token
    token_ids: tuple[int, ...]  # after the prompt: sampled tokens, and those that the environment wrote
    loss_mask: tuple[bool, ...]  # True where the policy sampled the token and the trace wants it trained
    logprobs: tuple[float, ...]  # by the engine; 0 where the policy did not sample the token


def read_openenv_trace(trace: Any) -> list[TraceRow]:
    """Return the rows of an OpenEnv `TrainingTrace`, version 1: the object, or the same as mappings.

    A turn whose prompt begins with all tokens of an earlier turn continues its row; every other one begins a row, as in
    `Session`. A turn whose mask has no 1 is context: it is part of a row that later turns continue. Rows without a
    token to train are left out. The fields of `Rollout` and of `Batch.of_tokens` have the same names.

    Raises `UserError` with one sentence for each turn whose lists do not fit each other.
    """
    turns = [_plain(turn) for turn in _plain(trace).get("turns", ())]
    if mistakes := [mistake for index, turn in enumerate(turns) for mistake in _mistakes(index, turn)]:
        raise UserError(mistakes)
    rows: list[TraceRow] = []
    for turn in turns:
        row = _row_of(turn)
        before = [earlier for earlier in rows if _begins_with(row, earlier)]
        if before:
            longest = max(before, key=lambda earlier: len(earlier.prompt_ids) + len(earlier.token_ids))
            rows.remove(longest)
            row = _continued(longest, row)
        rows.append(row)
    return [row for row in rows if any(row.loss_mask)]


def _plain(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else value.model_dump()


def _mistakes(index: int, turn: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a turn."""
    prompt, sampled, logprobs, mask = (len(turn[name]) for name in FIELDS)
    wrong = [] if prompt else ["no prompt"]
    wrong += [] if logprobs == sampled else [f"{sampled} sampled tokens, but {logprobs} log-probabilities"]
    wrong += [] if mask == prompt + sampled else [f"{prompt + sampled} tokens, but {mask} mask entries"]
    wrong += ["prompt tokens to train"] if any(turn["loss_mask"][:prompt]) else []
    return [f"turn {index} of the trace: {mistake}" for mistake in wrong]


FIELDS = ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask")
"""The fields of a `TrainingTurn` that are read."""


def _row_of(turn: Mapping[str, Sequence[Any]]) -> TraceRow:
    prompt, sampled, logprobs, mask = (turn[name] for name in FIELDS)
    return TraceRow(
        prompt_ids=tuple(prompt),
        token_ids=tuple(sampled),
        loss_mask=tuple(map(bool, mask[len(prompt) :])),
        logprobs=tuple(logprobs),
    )


def _begins_with(row: TraceRow, earlier: TraceRow) -> bool:
    whole = (*earlier.prompt_ids, *earlier.token_ids)
    return row.prompt_ids[: len(whole)] == whole


def _continued(earlier: TraceRow, row: TraceRow) -> TraceRow:
    """Return the row that `earlier` and a later turn are together."""
    between = row.prompt_ids[len(earlier.prompt_ids) + len(earlier.token_ids) :]
    return TraceRow(
        prompt_ids=earlier.prompt_ids,
        token_ids=(*earlier.token_ids, *between, *row.token_ids),
        loss_mask=(*earlier.loss_mask, *(False for _ in between), *row.loss_mask),
        logprobs=(*earlier.logprobs, *(0.0 for _ in between), *row.logprobs),
    )
