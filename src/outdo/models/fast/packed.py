"""Compute a batch without padding, and every group's prompt once.

All tokens are in one flat row: first each distinct prompt, then each completion, the longest first. Every part of a
transformer except attention and layers with a state computes each token alone, so this makes no difference to it. These
are computed here, on padded views of the flat row: each completion reads its own prompt and itself, and begins with the
state after its prompt. The result equals the padded forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from outdo.models.fast.attention import attention, within
from outdo.models.fast.layout import Rule, StatefulLayer
from outdo.models.logprobs import predecessors
from outdo.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """n neighbouring tokens of the flat row, which attention reads as R sequences of length L."""

    shape: tuple[int, int]  # R, L
    places: Tensor | None  # [n] the index of each token in R x L; None if nothing is padded
    at: Tensor  # [R, L] position within the sequence; 0 on padding
    real: Tensor  # [R, L] False on padding
    prompt_of: Tensor  # [R] the prompt that a row continues

    @property
    def lengths(self) -> Tensor:
        """The tokens of each row, without padding, [R]."""
        return self.real.sum(1)

    def pad(self, tokens: Tensor) -> Tensor:
        """[n, heads, d] -> [R, heads, L, d], 0 on padding."""
        if self.places is not None:
            padded = tokens.new_zeros(self.real.numel(), *tokens.shape[1:])
            tokens = padded.index_copy(0, self.places, tokens)  # [R * L, heads, d]
        return tokens.unflatten(0, self.shape).transpose(1, 2)

    def unpad(self, rows: Tensor) -> Tensor:
        """[R, heads, L, d] -> [n, heads, d]."""
        tokens = rows.transpose(1, 2).flatten(0, 1)  # [R * L, heads, d]
        return tokens if self.places is None else _TakeRows.apply(tokens, self.places)

    def pad_channels(self, tokens: Tensor) -> Tensor:
        """[n, C] -> [R, L, C], 0 on padding."""
        return self.pad(tokens[:, None]).squeeze(1)

    def unpad_channels(self, rows: Tensor) -> Tensor:
        """[R, L, C] -> [n, C]."""
        return self.unpad(rows[:, None]).squeeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The place of each token of a batch in the flat row of N tokens, and attention over this row."""

    token_ids: Tensor  # [N]
    positions: Tensor  # [N] position within the sequence; a completion continues that of its prompt
    rows: Tensor  # [N] row of the batch that a token is taken from, at column `positions`
    sizes: tuple[int, ...]  # tokens of the prompts, and of each part of the completions
    prompts: Part
    completions: tuple[Part, ...]
    source: Tensor  # [B, T + 1] index into the row of the position that predicts token t; the last is about the next
    _masks: dict[tuple[int | None, bool, torch.dtype], list[Tensor]] = field(default_factory=dict)

    @property
    def windows(self) -> frozenset[int | None]:
        """The windows that attention over this row was called with."""
        return frozenset(window for window, *_ in self._masks)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`; the result of padding stays 0."""
        device = query.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        prompt_mask, *masks = self._allowed(rule, dtype if rule.softcap is None else torch.bool)
        padding = query.shape[2] - len(self.token_ids)
        sizes = (*self.sizes, padding)
        prompts, *completions, _ = zip(*(x[0].transpose(0, 1).split(sizes) for x in (query, key, value)), strict=True)
        q, k, v = (self.prompts.pad(x) for x in prompts)  # [P, heads, Lp, d]
        outputs = [self.prompts.unpad(attention(q, k, v, prompt_mask, rule))]
        for part, of_prompt, allowed in zip(self.completions, completions, masks, strict=True):
            q, *own_keys_values = (part.pad(x) for x in of_prompt)  # [R, heads, L, d]
            keys, values = (
                torch.cat([x.index_select(0, part.prompt_of), y], 2)
                for x, y in zip((k, v), own_keys_values, strict=True)
            )
            outputs.append(part.unpad(attention(q, keys, values, allowed, rule)))
        outputs.append(query.new_zeros(padding, *outputs[0].shape[1:]))
        return torch.cat(outputs)[None]  # [1, N, heads, d]

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """See `Layout.scan`; the result of padding is 0."""
        padding = inputs.shape[1] - len(self.token_ids)
        prompts, *completions, _ = inputs[0].split((*self.sizes, padding))
        rows = self.prompts.pad_channels(prompts)
        output, ends = layer.scan(rows, self.prompts.lengths, layer.begin(rows))
        outputs = [self.prompts.unpad_channels(output)]
        for part, tokens in zip(self.completions, completions, strict=True):
            begins = tuple(tensor.index_select(0, part.prompt_of) for tensor in ends)
            output, _ = layer.scan(part.pad_channels(tokens), part.lengths, begins)
            outputs.append(part.unpad_channels(output))
        outputs.append(inputs.new_zeros(padding, outputs[0].shape[1]))
        return torch.cat(outputs)[None]  # [1, N, D]

    def _allowed(self, rule: Rule, dtype: torch.dtype) -> list[Tensor]:
        """Return which keys a query may read: [P, 1, Lp, Lp] for the prompts, then [R, 1, L, Lp + L] for each part.

        With sinks there is one more key: see `within`. A `dtype` other than bool is that of the numbers that are added
        to scores. SDPA makes these of booleans in every layer, and each layer would keep its own for the backward pass.
        """
        key = (rule.window, rule.sinks is not None, dtype)
        if key not in self._masks:
            masks = [within(self.prompts.at, self.prompts.at, self.prompts.real, rule)]
            for part in self.completions:
                read = torch.cat([self.prompts.at[part.prompt_of], part.at], 1)  # [R, Lp + L]
                real = torch.cat([self.prompts.real[part.prompt_of], part.real], 1)
                # A padded query reads the first key, so that no row of a softmax is empty; its result is not used.
                masks.append(within(part.at, read, real, rule))
            if dtype != torch.bool:
                masks = [torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) for mask in masks]
            self._masks[key] = masks
        return self._masks[key]


def pack(batch: Batch) -> Packed:
    """Pack a batch. Neighbouring rows of a group whose prompts are equal share one."""
    device, width = batch.token_ids.device, batch.token_ids.shape[1]
    is_prompt = torch.arange(width, device=device) < batch.prompt_lengths[:, None]  # [B, T]
    first = _first_of_prompt(batch, is_prompt)  # [B] True where the prompt of a row is not that of the row before
    owner, prompt_of = first.nonzero().squeeze(1), first.cumsum(0) - 1  # [P] the row a prompt is taken from, [B]
    lengths = batch.attention_mask.sum(1) - batch.prompt_lengths  # [B]

    zeros = torch.zeros_like(batch.prompt_lengths)
    laid_out = [_lay_out(owner, zeros, batch.prompt_lengths, prompt_of)]
    for rows in _similar_lengths(lengths.tolist()):
        laid_out.append(_lay_out(torch.tensor(rows, device=device), batch.prompt_lengths, lengths, prompt_of))
    parts, rows, columns = zip(*laid_out, strict=True)
    row, column = torch.cat(rows), torch.cat(columns)  # [N] row and column in the batch of each token of the flat row

    index = torch.zeros_like(batch.token_ids)  # [B, T] index in the flat row of each token of the batch
    index[row, column] = torch.arange(len(row), device=device)
    index = index[owner[prompt_of]].where(is_prompt, index)
    return Packed(
        token_ids=batch.token_ids[row, column],
        positions=column,
        rows=row,
        sizes=tuple(len(part) for part in rows),
        prompts=parts[0],
        completions=parts[1:],
        source=index[:, predecessors(width + 1, device)],
    )


def _lay_out(rows: Tensor, starts: Tensor, lengths: Tensor, prompt_of: Tensor) -> tuple[Part, Tensor, Tensor]:
    """Lay out some rows of a batch from column `starts` on; also return row and column of each token, [n]."""
    starts, lengths = starts[rows, None], lengths[rows, None]
    columns = torch.arange(int(lengths.max()), device=rows.device)  # [L]
    real = columns < lengths  # [R, L]
    at = (starts + columns) * real
    places = real.flatten().nonzero().squeeze(1)
    padded = len(places) < real.numel()
    part = Part(
        shape=(real.shape[0], real.shape[1]),
        places=places if padded else None,
        at=at,
        real=real,
        prompt_of=prompt_of[rows],
    )
    return part, rows[:, None].expand_as(real)[real], at[real]


def _similar_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Split the rows that are not empty, longest first, so that none is padded to more than twice its length."""
    parts: list[list[int]] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row]):
        if not parts or lengths[parts[-1][0]] > 2 * lengths[row]:
            parts.append([])
        parts[-1].append(row)
    return parts


class _TakeRows(torch.autograd.Function):
    """Take x[places], no place twice: the backward pass is a copy, where autograd's would add one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.length = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.length, *gradient.shape[1:]).index_copy(0, places, gradient), None


def _first_of_prompt(batch: Batch, is_prompt: Tensor) -> Tensor:
    """Return which rows' prompts differ from that of the row before, [B] bool."""
    prompts = batch.token_ids.where(is_prompt, -1)
    same = (prompts[1:] == prompts[:-1]).all(1) & (batch.group[1:] == batch.group[:-1])
    return torch.cat([same.new_ones(1), ~same])
