"""The conversations of a batch as rows of their own.

An episode is one row of a batch, also if it has several conversations: a later one follows the tokens before its fork
(`Batch.previous`), and not those that stand before it in the row. A model reads each conversation from its beginning.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from outdo.types import Batch
from outdo.types.rows import conversation_columns, pad_routes


def conversations(batch: Batch) -> tuple[Batch, Tensor]:
    """Return the S conversations of a batch as rows, and for each token the place in them that predicts it.

    The rows have token ids, prompts, groups, routes and inputs. The places are [B, T + 1], indices into [S, U + 1] made
    flat, U the length of the longest conversation; the column after a row's last token is the one after its last
    conversation. Tokens before the fork are in both conversations, and have the place of the first.
    """
    lengths, prompts = batch.attention_mask.sum(1).tolist(), batch.prompt_lengths.tolist()
    assert batch.previous is not None
    paths = [
        (row, path)
        for row, of_row in enumerate(batch.previous.tolist())
        for path in conversation_columns(of_row[: lengths[row]])
    ]
    starts = batch.group.diff(prepend=batch.group[:1] - 1).nonzero().squeeze(1)  # of the groups
    number = torch.searchsorted(starts, torch.arange(len(batch), device=starts.device), right=True).tolist()
    # Those that begin otherwise come last in their group, so that those with its prompt are neighbours.
    paths.sort(key=lambda path: (number[path[0]], path[1][: prompts[path[0]]] != [*range(prompts[path[0]])]))
    return _as_rows(batch, paths), _places(batch, paths)


def _as_rows(batch: Batch, paths: Sequence[tuple[int, list[int]]]) -> Batch:
    """Return a batch with one row for each conversation."""
    token_ids, prompts, group = batch.token_ids.tolist(), batch.prompt_lengths.tolist(), batch.group.tolist()
    rows = [[token_ids[row][column] for column in path] for row, path in paths]
    # A conversation that does not begin with the prompt of its group shares none with other rows.
    first = [prompts[row] if path[: prompts[row]] == [*range(prompts[row])] else 1 for row, path in paths]
    unfolded = Batch.of_tokens(
        [row[:length] for row, length in zip(rows, first, strict=True)],
        [row[length:] for row, length in zip(rows, first, strict=True)],
        group=[group[row] for row, _ in paths],
        inputs=[batch.inputs[row] for row, _ in paths] if batch.inputs else (),
    ).to(batch.token_ids.device)
    if batch.routes is None:
        return unfolded
    routes = [batch.routes[row, path] for row, path in paths]
    return unfolded.with_(routes=pad_routes(routes, unfolded.token_ids.shape[1]))


def _places(batch: Batch, paths: Sequence[tuple[int, list[int]]]) -> Tensor:
    """Return the places [B, T + 1] of `conversations`."""
    width = max(len(path) for _, path in paths) + 1
    places = torch.zeros(len(batch), batch.token_ids.shape[1] + 1, dtype=torch.int64)
    for number in range(len(paths))[::-1]:  # a token of several conversations has its place in the first
        row, path = paths[number]
        places[row, path] = torch.arange(len(path)) + number * width
    for number, (row, path) in enumerate(paths):
        after = path[-1] + 1
        if not bool(batch.attention_mask[row, after:].any()):  # the last conversation of the row
            places[row, after] = number * width + len(path)
    return places.to(batch.token_ids.device)
