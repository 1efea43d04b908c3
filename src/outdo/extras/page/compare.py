"""One text under two checkpoints: the log-probabilities of a recorded step's completions under each of them.

This is the only module of the page that needs torch, because it runs models.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import torch

from outdo.extras.page.encode import Table
from outdo.extras.page.select import CheckpointComparison
from outdo.models.attention.choice import choose_forward
from outdo.models.device import choose_device
from outdo.models.loading import load_model
from outdo.models.scorer import BatchSizes, Scorer
from outdo.run.checkpoints import checkpoint
from outdo.types import Batch
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
    """Compute log π of every token of the completions in `table`: one float32 array [tokens] per row."""
    if not len(table):
        return []
    batch, order = _batch(table)
    chosen, _ = choose_device(device)
    scorer = Scorer(choose_forward(load_model(model, device=chosen).requires_grad_(False)), BatchSizes())
    scores = scorer.logprobs(batch)
    values: list[Any] = [None] * len(order)
    lengths = batch.attention_mask.sum(1)
    for row, place in enumerate(order):
        values[place] = scores[row, batch.prompt_lengths[row] : lengths[row]].to(torch.float32).numpy()
    return values


def _batch(table: Table) -> tuple[Batch, Sequence[int]]:
    """Return the completions as a batch that scores all of their tokens, and the table row of each batch row."""
    names = ("group", "prompt_token_ids", "token_ids", "temperature")
    rows = table.select([name for name in names if name in table.column_names]).to_pylist()
    members: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        members.setdefault(row["group"], []).append(place)
    places = [place for same in members.values() for place in same]
    batch = Batch.of_tokens(
        [rows[place]["prompt_token_ids"] for place in places],
        [rows[place]["token_ids"] for place in places],
        group=[number for number, same in members.items() for _ in same],
        temperature=[rows[place].get("temperature") or 1.0 for place in places],
    )
    return batch, places
