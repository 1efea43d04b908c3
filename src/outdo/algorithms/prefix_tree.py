"""The prefix tree of a group: answers with the same beginning have the same contexts, until they differ."""

import torch
from jaxtyping import Int
from torch import Tensor

from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch


def prefix_tree(batch: Batch) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Return numbers of the context of each token, and of the token in its context: two [B, T] int64.

    Two tokens have equal contexts where their rows are of one group and all tokens before them are equal, trained or
    not. They are equal themselves where this token is equal too. Prompts are not compared: a group has one. The tokens
    before one are those of its conversation: not what stands before it in the row, if this has several.
    """
    conversations = Unfolded.of(batch)
    contexts, tokens = _of_rows(conversations.batch)
    return conversations.folded(contexts), conversations.folded(tokens)


def _of_rows(batch: Batch) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """See `prefix_tree`, of rows that are one conversation each."""
    rows, width = batch.token_ids.shape
    start = int(batch.prompt_lengths.min()) if rows else 0
    read = batch.group.unique(return_inverse=True)[1]  # [B] below B: rows with equal numbers are equal so far
    columns = [read] * (start + 1)
    vocabulary = int(batch.token_ids.max()) + 1 if rows else 1
    for token in batch.token_ids.T[start:]:
        read = (read * vocabulary + token).unique(return_inverse=True)[1]
        columns.append(read)
    column = torch.arange(width, device=read.device) * rows
    numbers = torch.stack(columns, 1)  # [B, T + 1]
    return numbers[:, :-1] + column, numbers[:, 1:] + column


def own_contexts(batch: Batch) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Return a context of its own for every token, as if no two answers had a common prefix. Two [B, T] int64."""
    columns = torch.arange(batch.token_ids.numel(), device=batch.token_ids.device).view_as(batch.token_ids)
    return columns, columns
