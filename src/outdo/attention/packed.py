"""A batch computed without padding, every group's prompt once.

All tokens stand in one flat row: first each distinct prompt, then each completion. Everything in a transformer but
attention looks at single tokens and does not notice; attention is done here, on padded views of the flat row, each
completion reading its own prompt and itself. What comes out equals the padded forward.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from outdo.attention.kernel import Rule, attention, within
from outdo.logprobs import predecessors
from outdo.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Where each token of a batch stands in the flat row of N tokens; also the attention over it."""

    token_ids: Tensor  # [N]
    positions: Tensor  # [N] position within the sequence; completions go on where their prompt ends
    prompts: Tensor  # [P, Lp] index into the row; 0 on padding
    prompt_mask: Tensor  # [P, Lp]
    completions: Tensor  # [B, Lc] index into the row; 0 on padding
    completion_mask: Tensor  # [B, Lc]
    prompt_of: Tensor  # [B] which prompt a completion answers
    source: Tensor  # [B, T] index into the row of the position that predicts token t
    _masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def windows(self) -> frozenset[int | None]:
        """The windows that attention over this row was asked to keep to."""
        return frozenset(self._masks)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """query [1, heads, N, d], key and value [1, kv_heads, N, d] -> [1, N, heads, d]."""
        of_prompts, of_completions = self._allowed(rule.window)
        q, k, v = (_rows(x, self.prompts) for x in (query, key, value))  # [P, heads, Lp, d]
        prompts = attention(q, k, v, of_prompts, rule).transpose(1, 2)[self.prompt_mask]
        own = (_rows(x, self.completions) for x in (key, value))
        k, v = (torch.cat([read[self.prompt_of], x], 2) for read, x in zip((k, v), own, strict=True))
        q = _rows(query, self.completions)  # [B, heads, Lc, d]
        completions = attention(q, k, v, of_completions, rule).transpose(1, 2)[self.completion_mask]
        return torch.cat([prompts, completions])[None]  # [1, N, heads, d]

    def _allowed(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Who may read whom: [P, 1, Lp, Lp] among prompts, [B, 1, Lc, Lp + Lc] for completions."""
        if window not in self._masks:
            at, after = self.positions[self.prompts], self.positions[self.completions]
            read = torch.cat([at[self.prompt_of], after], 1)  # [B, Lp + Lc]
            real = torch.cat([self.prompt_mask[self.prompt_of], self.completion_mask], 1)
            among = within(at, at, self.prompt_mask, window)
            # A padded query reads whatever stands first, so that no row of a softmax is empty; nobody reads it.
            self._masks[window] = (among, within(after, read, real, window))
        return self._masks[window]


def pack(batch: Batch) -> Packed:
    """Lay out a batch. Neighbouring rows of one group whose prompts are equal share them."""
    device, width = batch.token_ids.device, batch.token_ids.shape[1]
    lengths = batch.attention_mask.sum(1)  # [B]
    columns = torch.arange(width, device=device)
    is_prompt = columns < batch.prompt_lengths[:, None]  # [B, T]
    first = _first_of_prompt(batch, is_prompt)  # [B] True where a row brings its prompt
    prompt_of = first.cumsum(0) - 1
    owner = first.nonzero().squeeze(1)  # [P] the row each prompt is taken from

    prompt_mask = is_prompt[owner][:, : int(batch.prompt_lengths.max())]
    sizes = lengths - batch.prompt_lengths
    completion_mask = columns[: max(1, int(sizes.max()))] < sizes[:, None]
    prompts = (prompt_mask.flatten().cumsum(0) - 1).view_as(prompt_mask) * prompt_mask
    shared = int(prompt_mask.sum())
    completions = ((completion_mask.flatten().cumsum(0) - 1).view_as(completion_mask) + shared) * completion_mask

    after = batch.prompt_lengths[:, None] + columns[: completion_mask.shape[1]]  # [B, Lc] column of each token
    after = after.clamp(max=width - 1)
    token_ids = [batch.token_ids[owner][:, : prompt_mask.shape[1]][prompt_mask]]
    token_ids.append(batch.token_ids.gather(1, after)[completion_mask])
    at = columns[: prompt_mask.shape[1]].expand_as(prompt_mask)
    place = torch.zeros_like(batch.token_ids)  # [B, T] where each token stands in the row
    place[:, : prompts.shape[1]] = prompts[prompt_of] * is_prompt[:, : prompts.shape[1]]
    place[completion_mask.nonzero()[:, 0], after[completion_mask]] = completions[completion_mask]
    return Packed(
        token_ids=torch.cat(token_ids),
        positions=torch.cat([at[prompt_mask], after[completion_mask]]),
        prompts=prompts,
        prompt_mask=prompt_mask,
        completions=completions,
        completion_mask=completion_mask,
        prompt_of=prompt_of,
        source=place[:, predecessors(width, device)],
    )


def _first_of_prompt(batch: Batch, is_prompt: Tensor) -> Tensor:
    """Which rows' prompts differ from that of the row before them, [B] bool."""
    prompts = batch.token_ids.where(is_prompt, -1)
    same = (prompts[1:] == prompts[:-1]).all(1) & (batch.group[1:] == batch.group[:-1])
    return torch.cat([same.new_ones(1), ~same])


def _rows(flat: Tensor, index: Tensor) -> Tensor:
    """[1, heads, N, d], index [R, L] -> [R, heads, L, d]."""
    return flat[0].transpose(0, 1)[index].transpose(1, 2)
