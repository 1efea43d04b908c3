"""The KV cache of the sequences being sampled, and the attention of one new token per sequence.

On a CPU in float32 the result of a row has the same bits for any other rows of the batch, of any length: every product
has a fixed shape per row, and sums over the sequence are taken block by block in order, so that the blocks that only
longer rows need add exact zeros.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from outdo.models.attention.packed import Rule, attention, within

KeysValues = tuple[Tensor, Tensor]  # of one call of attention, [kv_heads, L, d] and [kv_heads, L, e]


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
    """The rows whose new token of a step is written into one block."""

    block: int
    rows: Tensor  # [m]
    offset: Tensor  # [m] within the block
    all_rows: bool  # True if these are all rows of the step, so that no index is needed


class KVCache:
    """The keys and values of sequences, in blocks of tokens: the cache grows without moving its contents.

    Keys and values are kept by the order of the calls of attention, as in `Prefill`. Call `begin` before each forward
    pass: it does once what all calls need. `lengths` [rows] counts the tokens of each row; it stays on the host, to
    avoid a synchronisation with the accelerator. A block has as many rows as were in use when it was allocated: when
    only one long answer is left, its new blocks have one row.
    """

    def __init__(self, rows: int, *, block: int, device: torch.device) -> None:
        self.block = block
        self.device = device
        self.lengths = numpy.zeros(rows, dtype=numpy.int64)
        # For each call the keys and the values, each a list of blocks [rows, kv_heads, block, d or e].
        self.calls: list[tuple[list[Tensor], list[Tensor]]] = []
        self._next_call = 0  # in the forward pass under way
        self._writes: list[BlockWrite] = []
        self._last = torch.zeros(0)  # [n], position of the new token of each row
        self._masks: dict[tuple[int | None, int, int], Tensor] = {}

    def admit(self, first: int, count: int, calls: Sequence[KeysValues]) -> None:
        """Copy a prompt's keys and values into `count` rows from `first` on."""
        length, end = calls[0][0].shape[1], first + count
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

    def begin(self, n: int) -> None:
        """Prepare a forward pass of one new token in each of the first n rows; their lengths then include it."""
        lengths = self.lengths[:n]
        blocks, offset = divmod(lengths, self.block)
        needed = int(blocks.max()) + 1
        first = self.calls[0][0]  # all calls have the same blocks
        if len(first) < needed or any(len(block) < n for block in first[:needed]):
            for store in chain.from_iterable(self.calls):
                self._reserve(store, needed, n, store[0])
        self._next_call = 0
        self._writes = []
        for block in range(int(blocks.min()), needed):
            rows = numpy.flatnonzero(blocks == block)
            if len(rows):
                where = (torch.from_numpy(each).to(self.device) for each in (rows, offset[rows]))
                self._writes.append(BlockWrite(block, *where, all_rows=len(rows) == n))
        self._last = torch.tensor(lengths, device=self.device)
        self._masks = {}
        lengths += 1

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Compute one new token for each of the n rows of `begin`: query [1, heads, n, d] -> [1, n, heads, e]."""
        heads, n, d = query.shape[1:]
        kv_heads = key.shape[1]
        stores = self.calls[self._next_call]
        self._next_call += 1
        for store, new in zip(stores, (key, value), strict=True):
            by_row = new[0].transpose(0, 1).to(store[0].dtype)  # [n, kv_heads, d or e]
            for write in self._writes:
                part = by_row if write.all_rows else by_row[write.rows]
                store[write.block][write.rows, :, write.offset] = part
        blocks = max(write.block for write in self._writes) + 1
        keys, values = ([block[:n].flatten(0, 1) for block in store[:blocks]] for store in stores)
        mask = self._mask(rule.window, kv_heads, heads // kv_heads, blocks)
        grouped = query[0].transpose(0, 1).reshape(n * kv_heads, heads // kv_heads, d)
        return _block_attention(grouped, keys, values, mask, rule).to(query.dtype).reshape(1, n, heads, -1)

    def _reserve(self, store: list[Tensor], blocks: int, rows: int, like: Tensor) -> None:
        """Allocate `blocks` blocks of `rows` rows where they are missing; `like` is [..., kv_heads, *, d]."""
        kv_heads, _, d = like.shape[-3:]
        for block in range(blocks):
            if block == len(store):
                store.append(like.new_zeros(rows, kv_heads, self.block, d))
            elif len(store[block]) < rows:
                missing = like.new_zeros(rows - len(store[block]), kv_heads, self.block, d)
                store[block] = torch.cat([store[block], missing])

    def _mask(self, window: int | None, kv_heads: int, group: int, blocks: int) -> Tensor:
        """Return 0 where a new token may attend, else -inf: [n * kv_heads, group, blocks * block]; once per step."""
        key = (window, kv_heads, group)
        if key not in self._masks:
            distance = self._last[:, None] - torch.arange(blocks * self.block, device=self.device)  # [n, L]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
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
