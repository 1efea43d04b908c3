"""Keys and values of sequences being sampled, and the attention of one new token per sequence.

On a CPU in float32 the result for a row has the same bits whatever rows stand beside it and however long they are:
every product has a fixed shape per row, and sums over the sequence go block by block in order, so that the blocks
only longer neighbours need add exact zeros.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from outdo.attention.kernel import Rule, attention, within

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


class RowCache:
    """Room for the keys and values of `rows` sequences; it grows by blocks as they get longer.

    `lengths` [rows] counts the tokens each row holds, `longest` is the most that any in use does: known to the caller
    beforehand, so that an accelerator need not be asked. A forward pass of the first n rows stores one token in each.
    """

    def __init__(self, rows: int, *, block: int, device: torch.device) -> None:
        self.block = block
        self.rows = rows
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.longest = 0
        self.keys: list[Tensor] = []  # of each layer: [blocks, rows, kv_heads, block, d]
        self.values: list[Tensor] = []

    def admit(self, row: int, layers: Sequence[Layer]) -> None:
        """Put a prompt's keys and values into a row."""
        length = layers[0][0].shape[1]
        for number, (key, value) in enumerate(layers):
            self._reserve(number, key[None, :, :1], length)
            for store, new in ((self.keys[number], key), (self.values[number], value)):
                for block, part in enumerate(new.split(self.block, 1)):
                    store[block, row, :, : part.shape[1]] = part
        self.lengths[row] = length

    def move(self, source: int, target: int) -> None:
        """Overwrite a row by another."""
        for store in self.keys + self.values:
            store[:, target] = store[:, source]
        self.lengths[target] = self.lengths[source]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """One new token for each of the first n rows: query [1, heads, n, d] -> [1, n, heads, d]."""
        n, lengths = query.shape[2], self.lengths[: query.shape[2]]
        blocks = self._reserve(layer, key, self.longest + 1)
        at = (lengths // self.block, torch.arange(n, device=lengths.device), slice(None), lengths % self.block)
        self.keys[layer][at] = key[0].transpose(0, 1).to(self.keys[layer].dtype)
        self.values[layer][at] = value[0].transpose(0, 1).to(self.values[layer].dtype)
        keys, values = self.keys[layer][:blocks, :n], self.values[layer][:blocks, :n]
        return _block_attention(query, keys, values, lengths, rule)

    def _reserve(self, layer: int, like: Tensor, length: int) -> int:
        """Make room for `length` tokens; returns how many blocks they take. `like` is [1, kv_heads, *, d]."""
        blocks = -(-length // self.block)
        if layer == len(self.keys):
            shape = (blocks, self.rows, like.shape[1], self.block, like.shape[3])
            self.keys.append(like.new_zeros(shape))
            self.values.append(like.new_zeros(shape))
        missing = blocks - len(self.keys[layer])
        if missing > 0:
            for stores in (self.keys, self.values):
                room = stores[layer].new_zeros(missing, *stores[layer].shape[1:])
                stores[layer] = torch.cat([stores[layer], room])
        return blocks


def _block_attention(query: Tensor, keys: Tensor, values: Tensor, last: Tensor, rule: Rule) -> Tensor:
    """query [1, heads, n, d], keys and values [blocks, n, kv_heads, block, d], last readable index [n]."""
    heads, n, d = query.shape[1:]
    blocks, _, kv_heads, block, _ = keys.shape
    query = query[0].transpose(0, 1).reshape(n, kv_heads, heads // kv_heads, d)
    scores = torch.stack([query @ part.transpose(-1, -2) for part in keys.to(query.dtype)]) * rule.scaling
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)  # [blocks, n, kv_heads, heads / kv_heads, block]
    at = torch.arange(blocks * block, device=last.device).view(blocks, 1, block)
    distance = last[:, None] - at  # [blocks, n, block]
    allowed = distance >= 0 if rule.window is None else (distance >= 0) & (distance < rule.window)
    scores = scores.float().masked_fill(~allowed[:, :, None, None], -torch.inf)
    weights = (scores - scores.amax((0, -1), keepdim=True)).exp()
    total, output = weights[0].sum(-1), weights[0] @ values[0].float()
    for index in range(1, blocks):  # in order: a block that is all zeros changes no bit
        total = total + weights[index].sum(-1)
        output = output + weights[index] @ values[index].float()
    return (output / total[..., None]).to(query.dtype).reshape(1, n, heads, d)
