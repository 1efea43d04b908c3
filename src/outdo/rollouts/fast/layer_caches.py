"""What one layer keeps of the sequences that are being sampled, for each kind of layer.

`KVCache` has a `LayerCache` for every call of a forward pass, and treats all of them alike: a prompt is admitted into
the rows of its answers, a row moves, and a row is copied for the next turn of an episode.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from outdo.models.fast.layout import StatefulLayer

RowState = tuple[Tensor, ...]
"""What a layer keeps of one sequence, for one of its calls: `KeysValues`, or one row of the `State` of a
`StatefulLayer`."""


class KeysValues(NamedTuple):
    """The keys and values of one sequence, for one call of attention."""

    keys: Tensor  # [kv_heads, L, d]
    values: Tensor  # [kv_heads, L, e]


class BlockWrite(NamedTuple):
    """The tokens of a forward pass whose keys and values are written into one block."""

    block: int
    tokens: Tensor | None  # [m] their places in the pass; None: all
    rows: Tensor  # [m]
    offset: Tensor  # [m] within the block


class AttentionPart(NamedTuple):
    """Neighbouring tokens of a forward pass whose attention is computed at once."""

    tokens: slice
    rows: Tensor | slice  # of each token; a slice needs no copy of the keys
    blocks: int  # that they may read


class NewTokens(NamedTuple):
    """The N tokens of a forward pass as rows of one length, with padding: at most L tokens of each of R sequences."""

    rows: Tensor | slice  # [R] the rows of the cache that have new tokens
    lengths: Tensor | None = None  # [R] how many each of them has; None: one, as in a decoding step
    places: tuple[Tensor, Tensor] | None = None  # [N] the number of the sequence, of R, and of the token in it, of L

    @classmethod
    def of(cls, counts: NDArray[numpy.int64], padding: int, device: torch.device) -> "NewTokens":
        """Return those of a pass of `counts[row]` tokens of each row, whose last token comes `padding` times more."""
        if not padding and (counts == 1).all():
            return cls(slice(len(counts)))
        rows = counts.nonzero()[0]
        lengths = counts[rows]
        sequence = numpy.repeat(numpy.arange(len(rows)), lengths)
        token = numpy.arange(len(sequence)) - numpy.repeat(lengths.cumsum() - lengths, lengths)
        places = (numpy.pad(numbers, (0, padding), mode="edge") for numbers in (sequence, token))
        of_rows, of_lengths, *of_places = (torch.from_numpy(array).to(device) for array in (rows, lengths, *places))
        return cls(of_rows, of_lengths, (of_places[0], of_places[1]))

    def pad(self, tokens: Tensor) -> Tensor:
        """[N, C] -> [R, L, C], 0 on padding."""
        if self.places is None or self.lengths is None:
            return tokens[:, None]
        rows = tokens.new_zeros(len(self.lengths), int(self.lengths.max()), tokens.shape[1])
        rows[self.places] = tokens
        return rows

    def unpad(self, rows: Tensor) -> Tensor:
        """[R, L, D] -> [N, D]."""
        return rows[:, 0] if self.places is None else rows[self.places]


class LayerCache:
    """What one call of a layer keeps of every row; row i is about sequence i."""

    generation = 0
    """How often tensors were replaced by others."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, each with the rows as its first dimension."""
        raise NotImplementedError

    def admit(self, first: int, count: int, state: RowState) -> None:
        """Copy what is kept of one sequence into `count` rows from `first` on, which all continue it."""
        raise NotImplementedError

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the row `source`, of a sequence of so many tokens, over the row `target`."""
        raise NotImplementedError

    def of_row(self, row: int, length: int) -> RowState:
        """Return a copy of what is kept of a row, of a sequence of so many tokens, as `admit` takes it."""
        raise NotImplementedError

    def make_room(self, tokens: int, rows: int) -> None:
        """Allocate what is missing for so many tokens of each of the first rows."""


class KeysValuesCache(LayerCache):
    """Keys and values in blocks of tokens: the cache grows without moving its contents.

    A block has as many rows as were in use when it was allocated: when only one long answer is left, its new blocks
    have one row. With `one_block` there is a single block, which becomes longer by `block` tokens where others would be
    added: all rows then read and write one tensor, whose shape stays for as many steps.
    """

    def __init__(self, rows: int, *, block: int, one_block: bool) -> None:
        self.rows = rows
        self.block = self.added = block
        self.one_block = one_block
        self.keys: list[Tensor] = []  # of each block, [rows, kv_heads, block, d]
        self.values: list[Tensor] = []  # [rows, kv_heads, block, e]
        self._views: dict[tuple[int, int], list[list[Tensor]]] = {}  # see `read_by`

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values]

    def admit(self, first: int, count: int, state: RowState) -> None:
        self._lengthen(state[0].shape[1], self.rows)
        for blocks, new in zip((self.keys, self.values), state, strict=True):
            parts = new.split(self.block, 1)
            self._reserve(blocks, len(parts), self.rows, new)
            for block, part in zip(blocks, parts, strict=False):
                block[first : first + count, :, : part.shape[1]] = part

    def move(self, source: int, target: int, length: int) -> None:
        used = -(-length // self.block)
        for block in (*self.keys[:used], *self.values[:used]):
            block[target] = block[source]

    def of_row(self, row: int, length: int) -> KeysValues:
        starts = range(0, length, self.block)

        def joined(blocks: Sequence[Tensor]) -> Tensor:
            parts = [block[row, :, : length - start] for start, block in zip(starts, blocks, strict=False)]
            return torch.cat(parts, 1)

        return KeysValues(joined(self.keys), joined(self.values))

    def has_room(self, tokens: int, rows: int) -> bool:
        """Return whether there is room for so many tokens of each of the first rows."""
        needed = -(-tokens // self.block)
        return len(self.keys) >= needed and all(len(block) >= rows for block in self.keys[:needed])

    def make_room(self, tokens: int, rows: int) -> None:
        self._lengthen(tokens, rows)
        for blocks in (self.keys, self.values):
            self._reserve(blocks, -(-tokens // self.block), rows, blocks[0])

    def write(self, writes: Sequence[BlockWrite], key: Tensor, value: Tensor) -> None:
        """Write the keys [kv_heads, n, d] and values [kv_heads, n, e] of the n tokens of a forward pass."""
        for blocks, new in ((self.keys, key), (self.values, value)):
            by_token = new.transpose(0, 1).to(blocks[0].dtype)  # [n, kv_heads, d or e]
            for write in writes:
                part = by_token if write.tokens is None else by_token[write.tokens]
                blocks[write.block][write.rows, :, write.offset] = part

    def read_by(self, part: AttentionPart) -> list[list[Tensor]]:
        """Return the blocks of keys and those of values that a part reads, each [m * kv_heads, block, d or e].

        Most steps read the same rows as the step before. Views of them are made once, and again after a change.
        """
        stores = (self.keys, self.values)
        if not isinstance(part.rows, slice):
            return [[block[part.rows].flatten(0, 1) for block in store[: part.blocks]] for store in stores]
        name = (part.rows.stop, part.blocks)
        if name not in self._views:
            self._views[name] = [[block[part.rows].flatten(0, 1) for block in store[: part.blocks]] for store in stores]
        return self._views[name]

    def _lengthen(self, tokens: int, rows: int) -> None:
        """Make the only block long enough for so many tokens, and drop the rows after the first ones."""
        if not self.one_block or tokens <= self.block:
            return
        more = -(-(tokens - self.block) // self.added) * self.added
        self.block += more
        for blocks in (self.keys, self.values):
            blocks[:] = [pad(block[:rows], (0, 0, 0, more)) for block in blocks]
        self._changed()

    def _reserve(self, blocks: list[Tensor], count: int, rows: int, like: Tensor) -> None:
        """Allocate `count` blocks of `rows` rows where they are missing; `like` is [..., kv_heads, *, d]."""
        kv_heads, _, d = like.shape[-3:]
        for number in range(count):
            if number == len(blocks):
                blocks.append(like.new_zeros(rows, kv_heads, self.block, d))
                self._changed()
            elif len(blocks[number]) < rows:
                missing = like.new_zeros(rows - len(blocks[number]), kv_heads, self.block, d)
                blocks[number] = torch.cat([blocks[number], missing])
                self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._views.clear()


class StateCache(LayerCache):
    """The state of a `StatefulLayer`, as large for a long sequence as for a short one."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.state: list[Tensor] = []  # each [rows, ...]

    @property
    def tensors(self) -> list[Tensor]:
        return self.state

    def admit(self, first: int, count: int, state: RowState) -> None:
        self.state = self.state or [tensor.new_zeros(self.rows, *tensor.shape) for tensor in state]
        for rows, tensor in zip(self.state, state, strict=True):
            rows[first : first + count] = tensor

    def move(self, source: int, target: int, length: int) -> None:
        for rows in self.state:
            rows[target] = rows[source]

    def of_row(self, row: int, length: int) -> RowState:
        return tuple(rows[row].clone() for rows in self.state)

    def scan(self, inputs: Tensor, layer: StatefulLayer, tokens: NewTokens) -> Tensor:
        """Let a layer read new tokens, [N, C] -> [N, D], and keep the state after them."""
        before = tuple(rows[tokens.rows] for rows in self.state)
        outputs, after = layer.scan_steps(tokens.pad(inputs), tokens.lengths, before)
        for rows, tensor in zip(self.state, after, strict=True):
            rows[tokens.rows] = tensor
        return tokens.unpad(outputs)
