"""The conversations of a batch as rows of their own, for what is computed along the tokens of a conversation.

An episode is one row of a batch. If it has several conversations, they stand in the row one after the other
(`Batch.previous`), and the token in the next column is not always the next token. Each conversation is a trajectory:

- It has the reward of the episode at its end, as each of its answers is followed by the end of the episode, whatever
  the other conversations say. With γ = λ = 1 and no KL in the reward all tokens of an episode have the same return.
- The value after its last token is 0, whatever stands behind it in the row. Only the first conversation ends where the
  episode was cut off.
- A token that several conversations have in common belongs to the first of them: it is trained once, and what comes
  after it is what comes after it there.
- Where answers of a group are compared turn by turn or token by token, the first conversations are compared with each
  other, and each further one with the first conversations of the other episodes: how many further ones there are, and
  what they say, changes nothing elsewhere.

What is about the answer as a whole is about the episode, with all of its conversations: its reward, its length |o_i| in
a mean, its ratio at the level of the sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from outdo.types import Batch
from outdo.types.rows import conversation_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """The C conversations of a batch, those of a row neighbours. Without forks they are the rows of the batch."""

    batch: Batch  # one row for each conversation; the tokens that its parent has too are not trained
    row: Int[Tensor, "C"]  # in which row of the whole batch a conversation is
    first: Bool[Tensor, "C"]  # whether it is the first one of this row
    parent: Int[Tensor, "C"]  # the conversation with which it begins; itself if there is none
    start: Int[Tensor, "C"]  # the number of tokens that both have
    columns: Int[Tensor, "C L"] | None = None  # in the row; -1 behind a conversation; None: no row has forks
    shape: tuple[int, int]  # B and T

    @classmethod
    def of(cls, batch: Batch) -> "Unfolded":
        """Return the conversations of a batch."""
        rows, width = batch.token_ids.shape
        number, device = torch.arange(rows, device=batch.token_ids.device), batch.token_ids.device
        if batch.previous is None:
            first, start = torch.ones_like(batch.scored), torch.zeros_like(number)
            return cls(batch=batch, row=number, first=first, parent=number, start=start, shape=(rows, width))
        paths, row, parent, start = (
            torch.tensor(path, device=device) for path in _paths(batch.previous, batch.attention_mask.sum(1).tolist())
        )
        first = row.diff(prepend=row[:1] - 1) > 0
        inside = paths >= 0
        unfolded = batch.gathered(row, paths.clamp(min=0), inside)
        of_row = inside & (torch.arange(paths.shape[1], device=device) >= start[:, None])
        prompts = unfolded.prompt_lengths.minimum(start).where(~first, unfolded.prompt_lengths)
        return cls(
            batch=unfolded.with_(
                loss_mask=unfolded.loss_mask & of_row,
                turn=_turns(unfolded.turn.where(inside, -1)),
                prompt_lengths=prompts,
                truncated=unfolded.truncated & first,
            ),
            row=row,
            first=first,
            parent=parent,
            start=start,
            columns=paths,
            shape=(rows, width),
        )

    def folded(self, values: Shaped[Tensor, "C L"]) -> Shaped[Tensor, "B T"]:
        """Put the values of conversations at their columns of the rows; 0 outside. [C, L] -> [B, T]"""
        if self.columns is None:
            return values
        index = torch.arange(values.shape[1], device=values.device)
        of_row = (self.columns >= 0) & (index >= self.start[:, None])
        row = self.row[:, None].expand_as(of_row)
        return values.new_zeros(self.shape).index_put((row[of_row], self.columns[of_row]), values[of_row])

    def compared_with(self, conversation: int) -> Bool[Tensor, "C"]:
        """Return the conversations that a further one is compared with: itself, and the first ones of other rows."""
        of_group = self.batch.group == self.batch.group[conversation]
        compared = self.first & of_group & (self.row != self.row[conversation])
        compared[conversation] = True
        return compared


def _paths(
    previous: Int[Tensor, "B T"], lengths: Sequence[int]
) -> tuple[list[list[int]], list[int], list[int], list[int]]:
    """Return the columns of each conversation, filled up with -1, and its row, parent and start: see `Unfolded`."""
    paths: list[list[int]] = []
    rows: list[int] = []
    parents: list[int] = []
    starts: list[int] = []
    for row, (of_row, length) in enumerate(zip(previous.tolist(), lengths, strict=True)):
        before, earlier = of_row[:length], len(paths)
        for path in conversation_columns(before):
            fork = max([0, *(column for column in path if before[column] != column - 1)])
            continued = [n for n, other in enumerate(paths[earlier:], earlier) if before[fork] in other]
            parents.append(min(continued, default=len(paths)))
            starts.append(path.index(fork))
            rows.append(row)
            paths.append(path)
    longest = max(map(len, paths))
    return [[*path, *[-1] * (longest - len(path))] for path in paths], rows, parents, starts


def _turns(turn: Int[Tensor, "C L"]) -> Int[Tensor, "C L"]:
    """Number the turns of each conversation anew, from 0; -1 stays."""
    begins = turn >= 0
    begins[:, 1:] &= turn[:, 1:] != turn[:, :-1]
    return (begins.cumsum(1, dtype=torch.int32) - 1).where(turn >= 0, -1)
