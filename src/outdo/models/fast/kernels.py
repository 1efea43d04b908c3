"""Kernels of `transformers` for the attention of a packed batch on an accelerator.

`Packed` itself computes on padded views with a mask, by `scaled_dot_product_attention`; an accelerator has no fast
kernel for that. The layouts of this module compute the same over the flat row as it is, without padding.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import pad
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.modeling_flash_attention_utils import _flash_attention_forward
from transformers.utils.import_utils import is_flash_attn_2_available

from outdo.models.fast.layout import Layout, Rule, StatefulLayer
from outdo.models.fast.packed import Packed

Kernel = Literal["sdpa", "flash_attention_2", "flex_attention"]


def kernel_for(device: torch.device, *, autocast: bool) -> Kernel:
    """Return the kernel for a device: FlashAttention where it is installed and products are in bfloat16, else SDPA."""
    return "flash_attention_2" if device.type == "cuda" and autocast and is_flash_attn_2_available() else "sdpa"


class Sequences(NamedTuple):
    """The prompts of a flat row, then its completions: S sequences of n tokens in all."""

    lengths: Tensor  # [S]
    continues: Tensor  # [S] the number of the prompt that a completion continues; of a prompt, its own

    @classmethod
    def of(cls, packed: Packed) -> "Sequences":
        parts = (packed.prompts, *packed.completions)
        return cls(torch.cat([part.real.sum(1) for part in parts]), torch.cat([part.prompt_of for part in parts]))

    def of_tokens(self) -> Tensor:
        """Return the sequence of each token, [n]."""
        return torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(self.lengths)


class _KernelLayout:
    """A layout that computes attention by a kernel, and all else as the packed batch does."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """See `Layout.scan`."""
        return self.packed.scan(inputs, layer)


class VariableLengths(_KernelLayout):
    """FlashAttention over sequences of different lengths. It needs CUDA, and 16 bits.

    The keys of a completion are those of its prompt, which are copied for it, and its own. It reads them causally from
    the end: its last token reads all of them.
    """

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed)
        sequences = Sequences.of(packed)
        self.tokens = len(packed.token_ids)
        is_prompt = torch.arange(len(sequences.lengths), device=sequences.lengths.device) < len(packed.prompts.real)
        starts = sequences.lengths.cumsum(0) - sequences.lengths  # [S]
        before = sequences.lengths[sequences.continues].where(~is_prompt, 0)  # [S] tokens of the prompt it continues
        first = torch.stack([starts[sequences.continues], starts], 1).flatten()  # [2S] of the prompt, then of its own
        count = torch.stack([before, sequences.lengths], 1).flatten()  # [2S]
        skipped = count.cumsum(0) - count  # [2S] keys before
        every = torch.arange(int(count.sum()), device=count.device)  # [M]
        self.read = every + (first - skipped).repeat_interleave(count)  # [M] the tokens whose keys are read, in order
        lengths = {"q": sequences.lengths, "k": before + sequences.lengths}
        self.options = {
            f"cu_seq_lens_{name}": pad(of_sequences.cumsum(0), (1, 0)).int() for name, of_sequences in lengths.items()
        }
        self.options |= {f"max_length_{name}": int(of_sequences.max()) for name, of_sequences in lengths.items()}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`; the result of padding is 0."""
        if rule.sinks is not None:
            raise ValueError("it has attention sinks, which FlashAttention 2 does not compute")
        autocast = torch.is_autocast_enabled(query.device.type)
        output = _flash_attention_forward(
            query[:, :, : self.tokens].transpose(1, 2),
            *(values[:, :, self.read].transpose(1, 2) for values in (key, value)),
            attention_mask=None,
            query_length=self.tokens,
            is_causal=True,
            softmax_scale=rule.scaling,
            sliding_window=rule.window,
            softcap=rule.softcap,
            target_dtype=torch.get_autocast_dtype(query.device.type) if autocast else None,
            attn_implementation="flash_attention_2",
            **self.options,
        )  # [1, n, heads, d]
        return pad(output, (0, 0, 0, 0, 0, query.shape[2] - self.tokens))


class FlexRow(_KernelLayout):
    """FlexAttention over the flat row, with a rule about two tokens; no key is copied."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed)
        sequences = Sequences.of(packed)
        self.tokens = len(packed.token_ids)
        self.own = sequences.of_tokens()  # [n]
        self.prompt = sequences.continues[self.own]  # [n]
        self.at = packed.positions  # [n]
        self.masks: dict[int | None, BlockMask] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`; the result of padding is 0."""
        device, rows = query.device.type, query.shape[2]
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
        query, key, value = (values[:, :, : self.tokens].to(dtype) for values in (query, key, value))
        module = nn.Identity().eval()  # of which only `training` is read
        mask = self._mask(rule.window)
        padding = rows - self.tokens
        output, _ = flex_attention_forward(
            module, query, key, value, mask, scaling=rule.scaling, softcap=rule.softcap, s_aux=rule.sinks
        )
        return pad(output, (0, 0, 0, 0, 0, padding))  # [1, N, heads, d]

    def _mask(self, window: int | None) -> BlockMask:
        if window not in self.masks:

            def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                reads = (self.own[key] == self.own[query]) | (self.own[key] == self.prompt[query])
                distance = self.at[query] - self.at[key]
                reads = reads & (distance >= 0)
                return reads if window is None else reads & (distance < window)

            n, device = self.tokens, self.own.device
            # Without compilation a mask of n x n tokens exists for a while.
            create = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
            self.masks[window] = create(allowed, 1, None, n, n, device=str(device))
        return self.masks[window]


LAYOUTS: Mapping[Kernel, Callable[[Packed], Layout]] = {"flash_attention_2": VariableLengths, "flex_attention": FlexRow}
"""The layouts that compute attention over the row of a batch by a kernel other than SDPA."""
