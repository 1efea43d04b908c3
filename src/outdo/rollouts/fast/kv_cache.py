"""The KV cache of the sequences being sampled, and the attention of new tokens, one or more of each sequence.

On a CPU in float32 the result of a token has the same bits for any other tokens of the forward pass: every product has
a fixed shape per token, and sums over the sequence are taken block by block in order, so that the blocks that only
longer rows need add exact zeros. It does not matter whether a token is sampled alone or read with its neighbours.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from outdo.models.fast.attention import Rule, attention, within

Indices = NDArray[numpy.int64]
KeysValues = tuple[Tensor, Tensor]  # of one call of attention, [kv_heads, L, d] and [kv_heads, L, e]

GATHERED_BYTES = 2**25
"""Bytes of keys that are copied at a time, so that each of several tokens of one row reads them alone."""


class Prefill:
    """The prefill of several prompts, concatenated into one flat row; it keeps the keys and values of each.

    They are kept by the order of the calls of attention in a forward pass, not by layer: a layer may call attention
    twice (DiffLlama), and a model may run through its layers several times (HRM).
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.calls: list[list[KeysValues]] = [[] for _ in lengths]  # per prompt, per call

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`. One prompt at a time, so that none depends on the others."""
        heads, tokens = query.shape[1:3]
        output = query.new_zeros(1, tokens, heads, value.shape[-1])  # tokens after the last prompt are padding: stay 0
        start = 0
        for index, length in enumerate(self.lengths):
            span = slice(start, start + length)
            q, k, v = query[:, :, span], key[:, :, span], value[:, :, span]
            positions = torch.arange(length, device=query.device)[None]
            allowed = None
            if rule.window is not None and rule.window < length:
                allowed = within(positions, positions, positions >= 0, rule.window)
            output[:, span] = attention(q, k, v, allowed, rule).transpose(1, 2)
            self.calls[index].append((k[0], v[0]))
            start += length
        return output


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


class KVCache:
    """The keys and values of sequences, in blocks of tokens: the cache grows without moving its contents.

    Keys and values are kept by the order of the calls of attention, as in `Prefill`. Call `begin` before each forward
    pass: it does once what all calls need. `lengths` [rows] counts the tokens of each row; it stays on the host, to
    avoid a synchronisation with the accelerator. A block has as many rows as were in use when it was allocated: when
    only one long answer is left, its new blocks have one row.

    With `one_block` there is a single block, which becomes longer by `block` tokens where others would be added: all
    rows then read and write one tensor, whose shape stays for as many steps. `generation` counts how often tensors
    were replaced.
    """

    def __init__(self, rows: int, *, block: int, device: torch.device, one_block: bool = False) -> None:
        self.block = self.added = block
        self.one_block = one_block
        self.generation = 0
        self.device = device
        self.lengths = numpy.zeros(rows, dtype=numpy.int64)
        # For each call the keys and the values, each a list of blocks [rows, kv_heads, block, d or e].
        self.calls: list[tuple[list[Tensor], list[Tensor]]] = []
        self._next_call = 0  # in the forward pass under way
        self._writes: list[BlockWrite] = []
        self._parts: list[AttentionPart] = []
        self._at = torch.zeros(0)  # [n], position of each new token in its sequence
        self._masks: dict[tuple[int, int | None, int, int], Tensor] = {}
        self._views: dict[tuple[int, int, int], list[list[Tensor]]] = {}  # see `_read_by`

    def admit(self, first: int, count: int, calls: Sequence[KeysValues]) -> None:
        """Copy a prompt's keys and values into `count` rows from `first` on."""
        length, end = calls[0][0].shape[1], first + count
        self._lengthen(length, len(self.lengths))
        self.calls += [([], []) for _ in range(len(calls) - len(self.calls))]
        for stores, call in zip(self.calls, calls, strict=True):
            for store, new in zip(stores, call, strict=True):
                parts = new.split(self.block, 1)
                self._reserve(store, len(parts), len(self.lengths), new)
                for block, part in zip(store, parts, strict=False):
                    block[first:end, :, : part.shape[1]] = part
        self.lengths[first:end] = length

    def move(self, source: int, target: int) -> None:
        """Copy the row `source` over the row `target`."""
        used = -(-int(self.lengths[source]) // self.block)
        for stores in self.calls:
            for store in stores:
                for block in store[:used]:
                    block[target] = block[source]
        self.lengths[target] = self.lengths[source]

    def keys_values(self, row: int) -> list[KeysValues]:
        """Return a copy of the keys and values of a row, as `admit` takes them."""
        length = int(self.lengths[row])
        starts = range(0, length, self.block)

        def joined(store: list[Tensor]) -> Tensor:
            parts = [block[row, :, : length - start] for start, block in zip(starts, store, strict=False)]
            return torch.cat(parts, 1)

        return [(joined(keys), joined(values)) for keys, values in self.calls]

    def begin(self, counts: Sequence[int], *, padding: int = 0) -> list[int]:
        """Prepare a forward pass of `counts[row]` new tokens of each row, row by row; return their positions.

        The lengths of the rows then include them. After them, the last token comes `padding` times more.
        """
        new = numpy.asarray(counts)
        rows = numpy.repeat(numpy.arange(len(new)), new)
        at = self.lengths[rows] + numpy.arange(len(rows)) - numpy.repeat(new.cumsum() - new, new)
        self.lengths[: len(new)] += new
        rows, at = (numpy.pad(each, (0, padding), mode="edge") for each in (rows, at))
        self.make_room(int(at.max()) + 1, len(new))
        self._next_call = 0
        self._writes = self._writes_of(rows, at)
        self._parts = self._parts_of(rows, at)
        self._at = torch.from_numpy(at).to(self.device)
        self._masks = {}
        return at.tolist()

    def begin_at(self, at: Tensor) -> None:
        """Prepare a forward pass of one new token of each of the first rows, at positions `at` [R] on the device.

        The cache has one block, with room for them. `lengths` stays as it is: the host need not know the positions.
        """
        self._next_call = 0
        self._writes = [BlockWrite(0, None, torch.arange(len(at), device=self.device), at)]
        self._parts = [AttentionPart(slice(None), slice(len(at)), 1)]
        self._at = at
        self._masks = {}

    def make_room(self, tokens: int, rows: int) -> None:
        """Allocate what is missing for so many tokens of each of the first rows."""
        self._lengthen(tokens, rows)
        needed = -(-tokens // self.block)
        first = self.calls[0][0]  # all calls have the same blocks
        if len(first) < needed or any(len(block) < rows for block in first[:needed]):
            for store in chain.from_iterable(self.calls):
                self._reserve(store, needed, rows, store[0])

    def _lengthen(self, tokens: int, rows: int) -> None:
        """Make the only block long enough for so many tokens, and drop the rows after the first ones."""
        if not self.one_block or tokens <= self.block:
            return
        more = -(-(tokens - self.block) // self.added) * self.added
        self.block += more
        for store in chain.from_iterable(self.calls):
            store[:] = [pad(block[:rows], (0, 0, 0, more)) for block in store]
        self._changed()

    def _writes_of(self, rows: Indices, at: Indices) -> list[BlockWrite]:
        blocks, offset = divmod(at, self.block)
        writes: list[BlockWrite] = []
        for block in range(int(blocks.min()), int(blocks.max()) + 1):
            tokens = numpy.flatnonzero(blocks == block)
            if len(tokens):
                where = [torch.from_numpy(each).to(self.device) for each in (tokens, rows[tokens], offset[tokens])]
                writes.append(BlockWrite(block, where[0] if len(tokens) < len(rows) else None, *where[1:]))
        return writes

    def _parts_of(self, rows: Indices, at: Indices) -> list[AttentionPart]:
        """Divide the tokens of a pass: one of each row at once, or else so many that the copied keys are bounded."""
        blocks = at // self.block + 1
        if numpy.array_equal(rows, numpy.arange(len(rows))):
            return [AttentionPart(slice(None), slice(len(rows)), int(blocks.max()))]
        block = self.calls[0][0][0]
        size = GATHERED_BYTES // (block[0].numel() * block.element_size() * int(blocks.max()))
        size = 4 * max(1, size // 4)  # as many products at a time as the engine computes at least
        parts = (slice(start, min(start + size, len(rows))) for start in range(0, len(rows), size))
        return [
            AttentionPart(part, torch.from_numpy(rows[part]).to(self.device), int(blocks[part].max())) for part in parts
        ]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Compute the n new tokens of `begin`: query [1, heads, n, d] -> [1, n, heads, e]."""
        heads, n, d = query.shape[1:]
        kv_heads = key.shape[1]
        stores = self.calls[self._next_call]
        for store, new in zip(stores, (key, value), strict=True):
            by_token = new[0].transpose(0, 1).to(store[0].dtype)  # [n, kv_heads, d or e]
            for write in self._writes:
                part = by_token if write.tokens is None else by_token[write.tokens]
                store[write.block][write.rows, :, write.offset] = part
        grouped = query[0].transpose(0, 1).reshape(n, kv_heads, heads // kv_heads, d)
        outputs: list[Tensor] = []
        for number, part in enumerate(self._parts):
            keys, values = self._read_by(part)
            mask = self._mask(number, rule, kv_heads, heads // kv_heads)
            outputs.append(_block_attention(grouped[part.tokens].flatten(0, 1), keys, values, mask, rule))
        self._next_call += 1
        output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return output.to(query.dtype).reshape(1, n, heads, -1)

    def _read_by(self, part: AttentionPart) -> list[list[Tensor]]:
        """Return the blocks of keys and those of values that a part reads, each [m * kv_heads, block, d or e].

        Most steps read the same rows as the step before. Views of them are made once, and again after a change.
        """
        stores = self.calls[self._next_call]
        if not isinstance(part.rows, slice):
            return [[block[part.rows].flatten(0, 1) for block in store[: part.blocks]] for store in stores]
        name = (self._next_call, part.rows.stop, part.blocks)
        if name not in self._views:
            self._views[name] = [[block[part.rows].flatten(0, 1) for block in store[: part.blocks]] for store in stores]
        return self._views[name]

    def _reserve(self, store: list[Tensor], blocks: int, rows: int, like: Tensor) -> None:
        """Allocate `blocks` blocks of `rows` rows where they are missing; `like` is [..., kv_heads, *, d]."""
        kv_heads, _, d = like.shape[-3:]
        for block in range(blocks):
            if block == len(store):
                store.append(like.new_zeros(rows, kv_heads, self.block, d))
                self._changed()
            elif len(store[block]) < rows:
                missing = like.new_zeros(rows - len(store[block]), kv_heads, self.block, d)
                store[block] = torch.cat([store[block], missing])
                self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._views.clear()

    def _mask(self, number: int, rule: Rule, kv_heads: int, group: int) -> Tensor:
        """Return 0 where the tokens of a part may attend, else -inf: [m * kv_heads, group, blocks * block]."""
        key = (number, rule.window, kv_heads, group)
        if key not in self._masks:  # once per forward pass; those of several parts would be too large together
            if len(self._parts) > 1:
                self._masks.clear()
            part = self._parts[number]
            positions = torch.arange(part.blocks * self.block, device=self.device)
            distance = self._at[part.tokens, None] - positions  # [m, L]
            hidden = distance < 0 if rule.window is None else (distance < 0) | (distance >= rule.window)
            mask = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)
            self._masks[key] = mask[:, None, None].expand(-1, kv_heads, group, -1).flatten(0, 1).contiguous()
        return self._masks[key]


def _block_attention(query: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor, rule: Rule) -> Tensor:
    """Compute softmax(scaling · Q Kᵀ + mask) V: query [r, g, d], mask [r, g, L] -> [r, g, e].

    The blocks of the keys are [r, block, d], those of the values [r, block, e]. r is rows times key heads; g is the
    number of query heads that share a key head.
    """
    query = query.to(keys[0].dtype)
    masks = mask.split(keys[0].shape[1], -1)
    if rule.softcap is None:
        scores = [
            torch.baddbmm(part.to(query.dtype), query, key.transpose(1, 2), alpha=rule.scaling)
            for part, key in zip(masks, keys, strict=True)
        ]
    else:
        raw = (query @ key.transpose(1, 2) * (rule.scaling / rule.softcap) for key in keys)
        scores = [part + rule.softcap * torch.tanh(each) for part, each in zip(masks, raw, strict=True)]
    joined = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
    weights = joined.float().softmax(-1).to(values[0].dtype).split(keys[0].shape[1], -1)
    output = torch.bmm(weights[0], values[0])
    for weight, value in zip(weights[1:], values[1:], strict=True):  # in order: a block of zeros changes no bit
        output = torch.baddbmm(output, weight, value)
    return output
