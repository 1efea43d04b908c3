"""One text under two checkpoints: the log-probabilities of a recorded step's completions under each of them.

This is the only module of the page that needs torch, because it runs models.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import torch

from outdo.extras.page.encode import Table
from outdo.extras.page.select import SCORED_COLUMNS, CheckpointComparison
from outdo.models.choose_forward import choose_forward
from outdo.models.device import choose_device
from outdo.models.loading import load_model
from outdo.models.scorer import BatchSizes, Scorer
from outdo.run.checkpoints import checkpoint
from outdo.types import Batch
from outdo.types.rows import previous_columns
from outdo.utils.errors import CheckpointError


def compare_checkpoints(step: int, a: Path, b: Path, *, device: str = "auto") -> CheckpointComparison:
    """Compare the checkpoints in the folders `a` and `b` on the completions of `step`.

    Raises: CheckpointError with everything that is wrong with the two checkpoints.
    """
    if faults := [fault for folder in (a, b) for fault in checkpoint.verify(folder)]:
        raise CheckpointError("\n".join(faults))
    return CheckpointComparison(step=step, a=a.name, b=b.name, rescore=partial(rescore, a=a, b=b, device=device))


def rescore(table: Table, *, a: Path, b: Path, device: str = "auto") -> Table:
    """Add the columns `a_logprobs` and `b_logprobs` to rows of a record: log π of every token of the completions.

    They are in nats, at the rollout's sampling temperature, like all log-probabilities of the record.
    """
    for name, folder in (("a_logprobs", a), ("b_logprobs", b)):
        lists = pyarrow.array(logprobs(table, folder, device=device), pyarrow.list_(pyarrow.float32()))
        table = table.append_column(name, lists)
    return table


def logprobs(table: Table, model: Path, *, device: str = "auto") -> list[Any]:
    """Compute log π of every token of the completions in `table`: one float32 array [tokens] per row.

    It is NaN for a token that begins a conversation anew: nothing is before it.
    """
    if not len(table):
        return []
    batch, order = _batch(table)
    chosen, _ = choose_device(device)
    scorer = Scorer(choose_forward(load_model(model, device=chosen).requires_grad_(False)), BatchSizes())
    scores = scorer.logprobs(batch)
    if batch.previous is not None:
        scores = scores.where(batch.previous >= 0, torch.nan)
    values: list[Any] = [None] * len(order)
    lengths = batch.attention_mask.sum(1)
    for row, index in enumerate(order):
        values[index] = scores[row, batch.prompt_lengths[row] : lengths[row]].to(torch.float32).numpy()
    return values


def _batch(table: Table) -> tuple[Batch, Sequence[int]]:
    """Return the completions as a batch that scores all of their tokens, and the table row of each batch row."""
    rows = table.select([name for name in SCORED_COLUMNS if name in table.column_names]).to_pylist()
    _check_inputs(rows)
    members: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(row["group"], []).append(index)
    places = [index for same in members.values() for index in same]
    batch = Batch.of_tokens(
        [rows[index]["prompt_token_ids"] for index in places],
        [rows[index]["token_ids"] for index in places],
        group=[number for number, same in members.items() for _ in same],
        temperature=[rows[index].get("temperature") or 1.0 for index in places],
    )
    forks = [_forks(rows[index]) for index in places]
    return batch.with_(previous=previous_columns(forks, batch.token_ids.shape[1])), places


def _check_inputs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `CheckpointError` if the model has read more than tokens: a record has the names of inputs alone."""
    if names := [name for row in rows for name in row.get("inputs") or ()]:
        raise CheckpointError(
            f"the model has read {names[0]} beside the tokens of these answers, and a record has tokens alone: they "
            "cannot be scored again"
        )


def _forks(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the forks of a row of the record (`record.table.FORKS`) in the form of `previous_columns`."""
    start = len(row["prompt_token_ids"])
    return [
        (start + fork["token"], -1 if fork["after"] is None else start + fork["after"])
        for fork in row.get("forks") or ()
    ]
