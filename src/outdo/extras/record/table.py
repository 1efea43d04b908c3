"""Build a step's record as an Arrow table: one row per rollout, with lists that have one entry per token.

The lists are about the tokens of the completion; only `prompt_token_ids` and `prompt_pieces` are about the prompt.
Unknown values are null. Tensors become lists without a loop over tokens: they are flattened once, and rows are offsets
into them.
"""

# pyarrow has no types:
# pyright: reportUnknownParameterType=false

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from outdo.extras.record.parquet import FORMAT, KEY
from outdo.extras.record.tokens import CLIP, TokenRecord
from outdo.models.token_text import TokenTexts
from outdo.run.folder.provenance import version_of
from outdo.types import Group, Rollout, Step

COLUMNS = (
    "rollout_logprobs",
    "old_logprobs",
    "new_logprobs",
    "ref_logprobs",
    "teacher_logprobs",
    "teacher_divergence",
    "values",
    "advantages",
    "target",
    "bound",
    "ratio",
    "entropy",
    "policy_push",
    "kl_pull",
    "net_push",
    "share",
    "weight",
)
"""The columns with one number per token, float32; see `TokenRecord`."""

TOP = pa.list_(
    pa.list_(
        pa.struct({"token_id": pa.int32(), "piece": pa.string(), "token_bytes": pa.binary(), "logprob": pa.float32()})
    )
)
"""The type of `old_top`, `new_top` and `teacher_top`: for each token of a completion, the most probable ones there."""

FORKS = pa.list_(pa.struct({"token": pa.int32(), "after": pa.int32()}))
"""The type of `forks`: where each further conversation of an episode begins, and which token it follows.

Both are places in the completion, from 0. Below 0 the place is in the prompt, -1 its last token; null: no token.
"""

COUNTS = pa.map_(pa.string(), pa.int32())
"""The type of `counts`. A struct would differ between steps with different tools, which DuckDB and Polars refuse."""

OF_THE_ENGINE = "engine/"
"""The beginning of the names of counts that can differ between equal runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens:
    """The K most probable tokens at each trained token of some rows of a batch, the most probable first."""

    rows: Sequence[int]  # R row numbers of the batch, in order
    token_ids: Tensor  # [R, T, K] int64
    logprobs: Tensor  # [R, T, K] float32, in nats; NaN where fewer than K are known

    def of_rows(self, wanted: Container[int]) -> "TopTokens":
        """Return those of some rows of the batch."""
        these = [index for index, row in enumerate(self.rows) if row in wanted]
        rows = [self.rows[index] for index in these]
        return TopTokens(rows=rows, token_ids=self.token_ids[these], logprobs=self.logprobs[these])


def record_table(
    step: Step,
    record: TokenRecord,
    token_texts: TokenTexts,
    *,
    about: Mapping[str, str],
    old_top: TopTokens | None = None,
    new_top: TopTokens | None = None,
    teacher_top: TopTokens | None = None,
) -> pa.Table:
    """Return the rollouts of a step as a table, in the order of its groups. `about` describes the run, as metadata.

    `old_top` and `new_top` are the most probable tokens before the step and after its last update, `teacher_top` those
    of the teachers, where known.

    Half of a surrogate pair, which UTF-8 cannot hold, is written as its escape `\\ud83d`.
    """
    batch, lists = step.batch, _Lists(step)
    groups = enumerate(step.groups)
    rows = [(number, n, rollout) for number, group in groups for n, rollout in enumerate(group.rollouts)]
    rollouts = [rollout for _, _, rollout in rows]
    of_group = pa.array([number for number, _, _ in rows], pa.int32())
    measured = (~record.new_logprobs.isnan()).any(1).numpy()  # [B]
    columns: dict[str, pa.Array] = {
        "step": pa.array([step.index] * len(rows), pa.int32()),
        "group": of_group,
        "rollout": pa.array([n for _, n, _ in rows], pa.int32()),
        **{name: values.take(of_group) for name, values in _prompts(step.groups, token_texts).items()},
        **_completions(step.groups, lists, token_texts),
        **_outcomes(rollouts),
        "advantage": lists.means(record.advantages),
        "policy_version": pa.array([rollout.policy_version for rollout in rollouts], pa.int64()),
        "policy_versions": pa.array([rollout.versions for rollout in rollouts], pa.list_(pa.int64())),
        "temperature": pa.array([rollout.temperature for rollout in rollouts], pa.float64()),
        "measured": pa.array(measured, pa.bool_()),
        **_episodes(step.groups),
        "loss_mask": lists.per_completion(pa.array(lists.flat(batch.loss_mask), pa.bool_())),
        "turn": lists.per_completion(pa.array(lists.flat(batch.turn), pa.int16())),
        "clip": lists.per_completion(
            pa.DictionaryArray.from_arrays(lists.flat(record.clip), pa.array(CLIP, pa.string()))
        ),
        **{
            name: lists.numbers(values, where=measured if name == "new_logprobs" else None)
            for name, values in _numbers(record).items()
        },
        "old_top": lists.top_tokens(old_top, token_texts),
        "new_top": lists.top_tokens(new_top, token_texts),
        "teacher_top": lists.top_tokens(teacher_top, token_texts),
    }
    described = {"format": FORMAT, "step": step.index, "version": version_of("outdo"), **about}
    return pa.table(columns, metadata={KEY: json.dumps(described)})


class _Lists:
    """Converts values of the batch's completions into lists, one per row."""

    def __init__(self, step: Step) -> None:
        batch = step.batch
        position = np.arange(batch.token_ids.shape[1])
        after_prompt = position >= batch.prompt_lengths.numpy()[:, None]
        self.inside = batch.attention_mask.numpy() & after_prompt  # [B, T]
        self.trained = batch.loss_mask.numpy()  # [B, T]
        self.lengths = self.inside.sum(1)  # [B]

    def flat(self, values: Tensor) -> np.ndarray[Any, Any]:
        """Return the values of the completions, one after the other, from [B, T]."""
        return values.numpy()[self.inside]

    def per_completion(self, flat: pa.Array) -> pa.ListArray:
        """Return one list per completion."""
        return pa.ListArray.from_arrays(_offsets(self.lengths), flat)

    def numbers(self, values: Tensor | None, *, where: np.ndarray[Any, Any] | None) -> pa.ListArray:
        """Return lists of float32, null in rows outside `where` or without `values`. NaN becomes null."""
        rows = np.full(len(self.lengths), values is not None) if where is None else where
        flat = np.zeros(0, np.float32) if values is None else values.numpy()[self.inside & rows[:, None]]
        offsets = _offsets(np.where(rows, self.lengths, 0))
        return pa.ListArray.from_arrays(offsets, pa.array(flat, pa.float32(), from_pandas=True), mask=pa.array(~rows))

    def top_tokens(self, top: TopTokens | None, token_texts: TokenTexts) -> pa.ListArray:
        """Return lists with the most probable tokens of each token; null in rows without them and at untrained tokens.

        The text of a token is the one that it has after another token.
        """
        if top is None:
            return pa.nulls(len(self.lengths), TOP)
        rows = np.isin(np.arange(len(self.lengths)), top.rows)
        trained, inside = self.trained[rows], self.inside[rows]  # [R, T] each
        known = trained[inside]  # for each token of the completions
        chosen = trained[:, : top.token_ids.shape[1]]
        token_ids, logprobs = (values.numpy()[chosen] for values in (top.token_ids, top.logprobs))  # [N, K]
        is_known = ~np.isnan(logprobs)
        counts = np.zeros(len(known), np.int64)
        counts[known] = is_known.sum(1)
        entries = _tokens(token_ids[is_known], logprobs[is_known], token_texts)
        of_tokens = pa.ListArray.from_arrays(_offsets(counts), entries, mask=pa.array(~known))
        return pa.ListArray.from_arrays(_offsets(np.where(rows, self.lengths, 0)), of_tokens, mask=pa.array(~rows))

    def means(self, values: Tensor | None) -> pa.Array:
        """Return the mean over the trained tokens of each row; null without any."""
        if values is None:
            return pa.nulls(len(self.lengths), pa.float64())
        counts = self.trained.sum(1)
        sums = np.where(self.trained, values.double().numpy(), 0.0).sum(1)
        means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return pa.array(means, pa.float64(), from_pandas=True)


def _offsets(lengths: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _tokens(ids: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any], token_texts: TokenTexts) -> pa.StructArray:
    """Return N token ids and log-probabilities as structs. [N] each"""
    distinct, index = np.unique(ids, return_inverse=True)
    texts = [token_texts.pieces_and_bytes([number], after=[number]) for number in distinct.tolist()]
    fields = (
        pa.array(ids, pa.int32()),
        pa.array([piece for (piece,), _ in texts], pa.string()).take(pa.array(index)),
        pa.array([octets for _, (octets,) in texts], pa.binary()).take(pa.array(index)),
        pa.array(logprobs, pa.float32()),
    )
    return pa.StructArray.from_arrays(fields, fields=list(TOP.value_type.value_type))


def _numbers(record: TokenRecord) -> dict[str, Tensor | None]:
    """Return the tensor of each of `COLUMNS`."""
    return {name: getattr(record, "targets" if name == "target" else name) for name in COLUMNS}


def _prompts(groups: Sequence[Group], token_texts: TokenTexts) -> dict[str, pa.Array]:
    """Return the columns that all rollouts of a group share, with one row per group."""
    pieces = [token_texts.pieces(group.prompt.token_ids) for group in groups]
    inputs = [sorted(group.prompt.inputs) for group in groups]
    return {
        "prompt_id": _texts(group.prompt.id for group in groups),
        "prompt": _texts("".join(of_prompt) for of_prompt in pieces),
        "prompt_token_ids": pa.array([group.prompt.token_ids for group in groups], pa.list_(pa.int32())),
        "prompt_pieces": pa.array(pieces, pa.list_(pa.string())),
        **({"inputs": pa.array(inputs, pa.list_(pa.string()))} if any(inputs) else {}),
        "answer": _texts(_answer(group.prompt.answer) for group in groups),
        "baseline": pa.array([group.baseline for group in groups], pa.float64()),
    }


def _completions(groups: Sequence[Group], lists: _Lists, token_texts: TokenTexts) -> dict[str, pa.Array]:
    """Return the tokens of the rollouts, and the text and bytes of each."""
    pieces: list[str] = []
    raw: list[bytes] = []
    ids: list[int] = []
    for group in groups:
        before = group.prompt.token_ids
        for rollout in group.rollouts:
            ids += rollout.token_ids
            spelled, octets = token_texts.pieces_and_bytes(rollout.token_ids, after=before)
            pieces += spelled
            raw += octets
    return {
        "text": _texts(rollout.text for group in groups for rollout in group.rollouts),
        "token_ids": lists.per_completion(pa.array(ids, pa.int32())),
        "pieces": lists.per_completion(pa.array(pieces, pa.string())),
        "token_bytes": lists.per_completion(pa.array(raw, pa.binary())),
    }


def _outcomes(rollouts: Sequence[Rollout]) -> dict[str, pa.Array]:
    """Return how the rollouts were rewarded and how they ended."""
    names = sorted({name for rollout in rollouts for name in rollout.reward_parts})
    parts = {_valid_utf8(name): _part(rollouts, name) for name in names}
    parts_struct = pa.StructArray.from_arrays(list(parts.values()), list(parts)) if parts else None
    return {
        "reward": pa.array([rollout.reward if rollout.scored else None for rollout in rollouts], pa.float64()),
        **({} if parts_struct is None else {"reward_parts": parts_struct}),
        "status": _texts(rollout.status for rollout in rollouts),
        "right": pa.array([rollout.right for rollout in rollouts], pa.bool_()),
        "finish_reason": _texts(str(rollout.finish_reason) for rollout in rollouts),
    }


def _episodes(groups: Sequence[Group]) -> dict[str, pa.Array]:
    """Return what only episodes of several turns have: further conversations, rewards of turns, and counts."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = pa.array([rollout.token_rewards for rollout in rollouts], pa.list_(pa.float32()))
    return {"forks": _forks(groups), "token_rewards": rewards, "counts": _counts(rollouts)}


def _counts(rollouts: Sequence[Rollout]) -> pa.Array:
    """Return what was counted in each episode, with the calls of each tool; null where nothing was.

    The seconds of calls are metrics alone: the record of a run that is repeated is the same.
    """
    counts = [
        {name: count for name, count in rollout.counts.items() if not name.startswith(OF_THE_ENGINE)}
        | {f"tools/calls/{name}": len(seconds) for name, seconds in rollout.tool_seconds.items()}
        for rollout in rollouts
    ]
    return pa.array([sorted(of_rollout.items()) or None for of_rollout in counts], COUNTS)


def _forks(groups: Sequence[Group]) -> pa.Array:
    """Return where the further conversations of each rollout begin; null where there are none."""
    rows = [
        [
            {"token": column - length, "after": before - length if before >= 0 else None}
            for column, before in rollout.forks
        ]
        or None
        for group in groups
        for length in [len(group.prompt.token_ids)]
        for rollout in group.rollouts
    ]
    return pa.array(rows, FORKS)


def _part(rollouts: Iterable[Rollout], name: str) -> pa.Array:
    values = (rollout.reward_parts.get(name) for rollout in rollouts)
    return pa.array([None if value is None or math.isnan(value) else value for value in values], pa.float64())


def _answer(answer: Any) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str)


def _texts(texts: Iterable[str | None]) -> pa.Array:
    return pa.array([None if text is None else _valid_utf8(text) for text in texts], pa.string())


def _valid_utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
