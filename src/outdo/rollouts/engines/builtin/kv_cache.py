"""Keys and values of sequences being sampled, and the attention of one new token per sequence.

On a CPU in float32 the result for a row has the same bits whatever rows stand beside it and however long they are:
every product has a fixed shape per row, and sums over the sequence go block by block in order, so that the blocks
only longer neighbours need add exact zeros.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from outdo.models.attention.kernel import Rule, attention, within

Layer = tuple[Tensor, Tensor]  # keys and values, each [kv_heads, L, d]


class Prefill:
    """Prompts read one after another in a flat row; keeps the keys and values of each."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.layers: list[list[Layer]] = [[] for _ in lengths]  # of each prompt, of each layer

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """query [1, heads, N, d] -> [1, N, heads, d]. Prompt by prompt, so that none depends on its neighbours."""
        output = torch.zeros_like(query)  # tokens beyond the prompts are filling, and stay 0
        start = 0
        for number, length in enumerate(self.lengths):
            span = slice(start, start + length)
            q, k, v = query[:, :, span], key[:, :, span], value[:, :, span]
            at = torch.arange(length, device=query.device)[None]
            allowed = None
            if rule.window is not None and rule.window < length:
                allowed = within(at, at, at >= 0, rule.window)
            output[:, :, span] = attention(q, k, v, allowed, rule)
            self.layers[number].append((k[0], v[0]))
            start += length
        return output.transpose(1, 2)


class Place(NamedTuple):
    """Where the new tokens of a step go that fall into one block."""

    block: int
    rows: Tensor  # [m]
    offset: Tensor  # [m] within the block
    every: bool  # whether these are all rows of the step, so that none need be picked out


class RowCache:
    """Room for the keys and values of sequences, block after block of tokens: it grows without moving what it holds.

    Call `begin` before each forward pass: it does once what all layers need. `lengths` [rows] counts the tokens that
    each row holds; it is kept on the host, so that an accelerator need not be asked. A block has as many rows as were
    in use when it was needed: where one long answer is left, its blocks hold that answer alone.
    """

    def __init__(self, rows: int, *, block: int, device: torch.device) -> None:
        self.block = block
        self.device = device
        self.lengths = numpy.zeros(rows, dtype=numpy.int64)
        # Of each layer keys and values, of each block [rows, kv_heads, block, d].
        self.layers: list[tuple[list[Tensor], list[Tensor]]] = []
        self._places: list[Place] = []
        self._last = torch.zeros(0)  # [n] position of the new token of each row
        self._masks: dict[tuple[int | None, int, int], Tensor] = {}

    def admit(self, first: int, count: int, layers: Sequence[Layer]) -> None:
        """Put a prompt's keys and values into `count` rows from `first` on."""
        length, end = layers[0][0].shape[1], first + count
        self.layers += [([], []) for _ in range(len(layers) - len(self.layers))]
        for stores, layer in zip(self.layers, layers, strict=True):
            for store, new in zip(stores, layer, strict=True):
                parts = new.split(self.block, 1)
                self._reserve(store, len(parts), len(self.lengths), new)
                for block, part in zip(store, parts, strict=False):
                    block[first:end, :, : part.shape[1]] = part
        self.lengths[first:end] = length

    def move(self, source: int, target: int) -> None:
        """Overwrite a row by another."""
        used = -(-int(self.lengths[source]) // self.block)
        for stores in self.layers:
            for store in stores:
                for block in store[:used]:
                    block[target] = block[source]
        self.lengths[target] = self.lengths[source]

    def begin(self, n: int) -> None:
        """Prepare for a forward pass of one new token in each of the first n rows, whose lengths then count it."""
        lengths = self.lengths[:n]
        blocks, offset = divmod(lengths, self.block)
        needed = int(blocks.max()) + 1
        first = self.layers[0][0]  # as full as all others
        if len(first) < needed or any(len(block) < n for block in first[:needed]):
            for store in chain.from_iterable(self.layers):
                self._reserve(store, needed, n, store[0])
        self._places = []
        for block in range(int(blocks.min()), needed):
            rows = numpy.flatnonzero(blocks == block)
            if len(rows):
                place = (torch.from_numpy(each).to(self.device) for each in (rows, offset[rows]))
                self._places.append(Place(block, *place, every=len(rows) == n))
        self._last = torch.tensor(lengths, device=self.device)
        self._masks = {}
        lengths += 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """One new token for each of the n rows of `begin`: query [1, heads, n, d] -> [1, n, heads, d]."""
        heads, n, d = query.shape[1:]
        kv_heads = key.shape[1]
        stores = self.layers[layer]
        for store, new in zip(stores, (key, value), strict=True):
            by_row = new[0].transpose(0, 1).to(store[0].dtype)  # [n, kv_heads, d]
            for place in self._places:
                part = by_row if place.every else by_row[place.rows]
                store[place.block][place.rows, :, place.offset] = part
        blocks = max(place.block for place in self._places) + 1
        keys, values = ([block[:n].flatten(0, 1) for block in store[:blocks]] for store in stores)
        mask = self._mask(rule.window, kv_heads, heads // kv_heads, blocks)
        grouped = query[0].transpose(0, 1).reshape(n * kv_heads, heads // kv_heads, d)
        return _block_attention(grouped, keys, values, mask, rule).to(query.dtype).reshape(1, n, heads, d)

    def _reserve(self, store: list[Tensor], blocks: int, rows: int, like: Tensor) -> None:
        """Make room for that many blocks of that many rows; `like` is [..., kv_heads, *, d]."""
        kv_heads, _, d = like.shape[-3:]
        for block in range(blocks):
            if block == len(store):
                store.append(like.new_zeros(rows, kv_heads, self.block, d))
            elif len(store[block]) < rows:
                missing = like.new_zeros(rows - len(store[block]), kv_heads, self.block, d)
                store[block] = torch.cat([store[block], missing])

    def _mask(self, window: int | None, kv_heads: int, group: int, blocks: int) -> Tensor:
        """0 where a new token may read, -inf where not: [n * kv_heads, group, blocks * block], made once per step."""
        key = (window, kv_heads, group)
        if key not in self._masks:
            distance = self._last[:, None] - torch.arange(blocks * self.block, device=self.device)  # [n, L]
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            mask = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)
            self._masks[key] = mask[:, None, None].expand(-1, kv_heads, group, -1).flatten(0, 1).contiguous()
        return self._masks[key]


def _block_attention(query: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor, rule: Rule) -> Tensor:
    """softmax(scaling · Q Kᵀ + mask) V: query [r, g, d], each block [r, block, d], mask [r, g, L] -> [r, g, d].

    r counts rows times key heads, g the query heads that share a key head.
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
