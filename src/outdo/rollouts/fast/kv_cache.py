"""The cache of the sequences being sampled, and the attention of new tokens, one or more of each sequence.

On a CPU in float32 the result of a token has the same bits for any other tokens of the forward pass: every product has
a fixed shape per token, and sums over the sequence are taken block by block in order, so that the blocks that only
longer rows need add exact zeros. It does not matter whether a token is sampled alone or read with its neighbours.
"""

from collections.abc import Sequence
from functools import partial

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from outdo.models.fast.attention import attention, within
from outdo.models.fast.layout import Rule, StatefulLayer
from outdo.rollouts.fast.layer_caches import (
    AttentionPart,
    BlockWrite,
    KeysValues,
    KeysValuesCache,
    LayerCache,
    NewTokens,
    RowState,
    StateCache,
)

Indices = NDArray[numpy.int64]

GATHERED_BYTES = 2**25
"""Bytes of keys that are copied at a time, so that each of several tokens of one row reads them alone."""


class Prefill:
    """The prefill of several prompts, concatenated into one flat row; it keeps what each layer keeps of each prompt.

    That is kept by the order of the calls in a forward pass, not by layer: a layer may call attention twice
    (DiffLlama), and a model may run through its layers several times (HRM).
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.states: list[list[RowState]] = [[] for _ in lengths]  # per prompt, per call

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
            if rule.sinks is not None or (rule.window is not None and rule.window < length):
                allowed = within(positions, positions, positions >= 0, rule)
            output[:, span] = attention(q, k, v, allowed, rule).transpose(1, 2)
            self.states[index].append(KeysValues(k[0], v[0]))
            start += length
        return output

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """See `Layout.scan`. One prompt at a time, as in `attend`; the result of padding is 0."""
        padding = inputs.shape[1] - sum(self.lengths)
        outputs: list[Tensor] = []
        for index, prompt in enumerate(inputs.split([*self.lengths, padding], 1)[:-1]):
            output, state = layer.scan(prompt, None, layer.begin(prompt))
            outputs.append(output)
            self.states[index].append(tuple(tensor[0].clone() for tensor in state))  # not a view of all tokens
        return pad(torch.cat(outputs, 1), (0, 0, 0, padding))


class KVCache:
    """What all layers keep of sequences, which are the rows: a `LayerCache` for each call, in the order of `Prefill`.

    Call `begin` before each forward pass: it does once what all calls need. `lengths` [rows] counts the tokens of each
    row; it stays on the host, to avoid a synchronisation with the accelerator. For `block` and `one_block` see
    `KeysValuesCache`.
    """

    def __init__(self, rows: int, *, block: int, device: torch.device, one_block: bool = False) -> None:
        self.device = device
        self.lengths = numpy.zeros(rows, dtype=numpy.int64)
        self.layers: list[LayerCache] = []
        self._attention: list[KeysValuesCache] = []  # those of the layers that keep keys and values, with equal blocks
        self._new_keys_values = partial(KeysValuesCache, rows, block=block, one_block=one_block)
        self._next_call = 0  # in the forward pass under way
        self._tokens = NewTokens(slice(0))
        self._writes: list[BlockWrite] = []
        self._parts: list[AttentionPart] = []
        self._at = torch.zeros(0)  # [n], position of each new token in its sequence
        self._masks: dict[tuple[int, int | None, int, int], Tensor] = {}

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state, which is about all tokens that were read, and not about a part of them."""
        return len(self._attention) < len(self.layers)

    @property
    def generation(self) -> int:
        """How often tensors were replaced by others."""
        return sum(layer.generation for layer in self.layers)

    def admit(self, first: int, count: int, length: int, states: Sequence[RowState]) -> None:
        """Copy what the layers keep of `length` tokens into `count` rows from `first` on."""
        if not self.layers:
            self.layers = [self._new_layer(state) for state in states]
            self._attention = [layer for layer in self.layers if isinstance(layer, KeysValuesCache)]
        for layer, state in zip(self.layers, states, strict=True):
            layer.admit(first, count, state)
        self.lengths[first : first + count] = length

    def move(self, source: int, target: int) -> None:
        """Copy the row `source` over the row `target`."""
        for layer in self.layers:
            layer.move(source, target, int(self.lengths[source]))
        self.lengths[target] = self.lengths[source]

    def states_of(self, row: int) -> list[RowState]:
        """Return a copy of what the layers keep of a row, as `admit` takes it."""
        return [layer.of_row(row, int(self.lengths[row])) for layer in self.layers]

    def begin(self, counts: Sequence[int], *, padding: int = 0) -> list[int]:
        """Prepare a forward pass of `counts[row]` new tokens of each row, row by row; return their positions.

        The lengths of the rows then include them. After them, the last token comes `padding` times more.
        """
        new = numpy.asarray(counts)
        rows = numpy.repeat(numpy.arange(len(new)), new)
        at = self.lengths[rows] + numpy.arange(len(rows)) - numpy.repeat(new.cumsum() - new, new)
        self.lengths[: len(new)] += new
        rows, at = (numpy.pad(array, (0, padding), mode="edge") for array in (rows, at))
        self.make_room(int(at.max()) + 1, len(new))
        self._next_call = 0
        if self._attention:
            self._writes, self._parts = self._writes_of(rows, at), self._parts_of(rows, at)
        if self.has_states:
            self._tokens = NewTokens.of(new, padding, self.device)
        self._at = torch.from_numpy(at).to(self.device)
        self._masks = {}
        return at.tolist()

    def begin_at(self, at: Tensor) -> None:
        """Prepare a forward pass of one new token of each of the first rows, at positions `at` [R] on the device.

        The cache has one block, with room for them. `lengths` stays as it is: the host need not know the positions.
        """
        self._next_call = 0
        self._tokens = NewTokens(slice(len(at)))
        self._writes = [BlockWrite(0, None, torch.arange(len(at), device=self.device), at)]
        self._parts = [AttentionPart(slice(None), slice(len(at)), 1)]
        self._at = at
        self._masks = {}

    def make_room(self, tokens: int, rows: int) -> None:
        """Allocate what is missing for so many tokens of each of the first rows."""
        if self._attention and not self._attention[0].has_room(tokens, rows):
            for layer in self.layers:
                layer.make_room(tokens, rows)

    def _writes_of(self, rows: Indices, at: Indices) -> list[BlockWrite]:
        blocks, offset = divmod(at, self._attention[0].block)
        writes: list[BlockWrite] = []
        for block in range(int(blocks.min()), int(blocks.max()) + 1):
            tokens = numpy.flatnonzero(blocks == block)
            if len(tokens):
                where = [torch.from_numpy(array).to(self.device) for array in (tokens, rows[tokens], offset[tokens])]
                writes.append(BlockWrite(block, where[0] if len(tokens) < len(rows) else None, *where[1:]))
        return writes

    def _parts_of(self, rows: Indices, at: Indices) -> list[AttentionPart]:
        """Divide the tokens of a pass: one of each row at once, or else so many that the copied keys are bounded."""
        cache = self._attention[0]
        blocks = at // cache.block + 1
        if numpy.array_equal(rows, numpy.arange(len(rows))):
            return [AttentionPart(slice(None), slice(len(rows)), int(blocks.max()))]
        block = cache.keys[0]
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
        layer = self._next_layer()
        assert isinstance(layer, KeysValuesCache)
        layer.write(self._writes, key[0], value[0])
        grouped = query[0].transpose(0, 1).reshape(n, kv_heads, heads // kv_heads, d)
        outputs: list[Tensor] = []
        for number, part in enumerate(self._parts):
            keys, values = layer.read_by(part)
            mask = self._mask(number, rule, kv_heads, heads // kv_heads)
            outputs.append(_block_attention(grouped[part.tokens].flatten(0, 1), keys, values, mask, rule))
        output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return output.to(query.dtype).reshape(1, n, heads, -1)

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """Let a layer read the n new tokens of `begin`: inputs [1, n, C] -> [1, n, D]. See `Layout.scan`."""
        cache = self._next_layer()
        assert isinstance(cache, StateCache)
        return cache.scan(inputs[0], layer, self._tokens)[None]

    def _new_layer(self, state: RowState) -> LayerCache:
        return self._new_keys_values() if isinstance(state, KeysValues) else StateCache(len(self.lengths))

    def _next_layer(self) -> LayerCache:
        self._next_call += 1
        return self.layers[self._next_call - 1]

    def _mask(self, number: int, rule: Rule, kv_heads: int, group: int) -> Tensor:
        """Return 0 where the tokens of a part may attend, else -inf: [m * kv_heads, group, blocks * block]."""
        key = (number, rule.window, kv_heads, group)
        if key not in self._masks:  # once per forward pass; those of several parts would be too large together
            if len(self._parts) > 1:
                self._masks.clear()
            part = self._parts[number]
            positions = torch.arange(part.blocks * self._attention[0].block, device=self.device)
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
        scores = [part + rule.softcap * torch.tanh(score) for part, score in zip(masks, raw, strict=True)]
    joined = torch.cat(scores, -1) if len(scores) > 1 else scores[0]
    softmax = joined.float().softmax(-1)
    weights = softmax.to(values[0].dtype).split(keys[0].shape[1], -1)
    output = torch.bmm(weights[0], values[0])
    for weight, value in zip(weights[1:], values[1:], strict=True):  # in order: a block of zeros changes no bit
        output = torch.baddbmm(output, weight, value)
    return output if rule.sinks is None else output * _left_by_sinks(rule.sinks, joined, softmax)


def _left_by_sinks(sinks: Tensor, scores: Tensor, softmax: Tensor) -> Tensor:
    """Return what the sinks [heads] leave to the tokens, 1 / (1 + exp(sink - lse)): scores [r, g, L] -> [r, g, 1].

    lse is the logarithm of the sum in the softmax. The greatest weight is exp(greatest score - lse), and has the same
    bits before any masked block, as a sum of its own would not.
    """
    of_heads = sinks.view(-1, scores.shape[1])  # [kv_heads, g]
    of_rows = of_heads.repeat(len(scores) // len(of_heads), 1)[..., None]  # [r, g, 1]
    return 1 / (1 + softmax.amax(-1, keepdim=True) * torch.exp(of_rows - scores.amax(-1, keepdim=True)))
