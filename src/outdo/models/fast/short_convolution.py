"""The short convolutions of LFM2 and LFM3, whose state is their last inputs."""

from typing import Any

import torch
from torch import Tensor, nn

from outdo.models.fast.layout import Layout, State, StatefulLayer


class ShortConvolution(StatefulLayer):
    """y = out(c · conv(b · x)) with (b, c, x) = in(h), where in each channel conv(u)ₜ = Σₖ wₖ uₜ₋ₖ over 0 ≤ k < K.

    Before the first token u is 0. The state is the last K - 1 inputs u of the convolution, [R, K - 1, C]. Each number
    is multiplied and added alone, always in the same order, so that no other token changes its bits.
    """

    @classmethod
    def computes(cls, module: nn.Module) -> bool:
        parts = dict(module.named_children())
        conv = parts.get("conv")
        return (
            set(parts) == {"conv", "in_proj", "out_proj"}
            and type(conv) is nn.Conv1d
            and conv.groups == conv.in_channels == conv.out_channels
            and (conv.stride, conv.dilation) == ((1,), (1,))
        )

    @torch.compiler.disable  # each batch has other sequences
    def forward(self, hidden_states: Tensor, *, layout: Layout, **options: Any) -> Tensor:
        b, c, x = self.module.in_proj(hidden_states).chunk(3, -1)
        return self.module.out_proj(c * layout.scan(b * x, self))

    def begin(self, inputs: Tensor) -> State:
        rows, _, channels = inputs.shape
        return (inputs.new_zeros(rows, self.module.conv.kernel_size[0] - 1, channels),)

    def scan(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        (before,) = state
        length, taps = inputs.shape[1], self.module.conv.weight.squeeze(1).unbind(1)  # K of [C], that of t last
        read = torch.cat([before, inputs], 1)  # [R, K - 1 + L, C]
        output = read[:, :length] * taps[0]
        for offset, tap in enumerate(taps[1:], start=1):
            output = output + read[:, offset : offset + length] * tap
        if self.module.conv.bias is not None:
            output = output + self.module.conv.bias
        return output.to(inputs.dtype), (_inputs_before(read, lengths, before.shape[1]),)


def _inputs_before(read: Tensor, lengths: Tensor | None, count: int) -> Tensor:
    """Return the last `count` inputs before the padding: `read` [R, count + L, C] -> [R, count, C].

    `lengths` [R] of the last L inputs of each row are real; None: all.
    """
    if lengths is None:
        return read[:, read.shape[1] - count :]
    places = lengths[:, None] + torch.arange(count, device=read.device)  # [R, count]
    return read.gather(1, places[..., None].expand(-1, -1, read.shape[2]))
