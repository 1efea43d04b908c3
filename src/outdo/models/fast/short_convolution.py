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
        return set(parts) == {"conv", "in_proj", "out_proj"} and mixes_no_channels(parts["conv"])

    @torch.compiler.disable  # each batch has other sequences
    def forward(self, hidden_states: Tensor, *, layout: Layout, **options: Any) -> Tensor:
        b, c, x = self.module.in_proj(hidden_states).chunk(3, -1)
        return self.module.out_proj(c * layout.scan(b * x, self))

    def begin(self, inputs: Tensor) -> State:
        return (inputs_before_the_first(self.module.conv, inputs),)

    def scan(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        output, after = convolve(self.module.conv, inputs, lengths, *state)
        return output, (after,)


def mixes_no_channels(conv: nn.Module) -> bool:
    """Return whether a convolution is one that `convolve` computes: of each channel alone, at neighbouring tokens."""
    return (
        type(conv) is nn.Conv1d
        and conv.groups == conv.in_channels == conv.out_channels
        and (conv.stride, conv.dilation) == ((1,), (1,))
    )


def inputs_before_the_first(conv: nn.Conv1d, inputs: Tensor) -> Tensor:
    """Return the inputs that `convolve` reads before the first token of R sequences, [R, L, C] -> [R, K - 1, C]: 0."""
    return inputs.new_zeros(len(inputs), conv.kernel_size[0] - 1, inputs.shape[2])


def convolve(conv: nn.Conv1d, inputs: Tensor, lengths: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the convolution of the next tokens of R sequences, [R, L, C] -> [R, L, C].

    `lengths` [R] of them are real, None: all; `before` [R, K - 1, C] are the inputs before them. Also returns those
    before the token after them.
    """
    length, taps = inputs.shape[1], conv.weight.squeeze(1).unbind(1)  # K of [C], that of t last
    read = torch.cat([before, inputs], 1)  # [R, K - 1 + L, C]
    output = read[:, :length] * taps[0]
    for offset, tap in enumerate(taps[1:], start=1):
        output = output + read[:, offset : offset + length] * tap
    if conv.bias is not None:
        output = output + conv.bias
    return output.to(inputs.dtype), _inputs_before(read, lengths, before.shape[1])


def _inputs_before(read: Tensor, lengths: Tensor | None, count: int) -> Tensor:
    """Return the last `count` inputs before the padding: `read` [R, count + L, C] -> [R, count, C].

    `lengths` [R] of the last L inputs of each row are real; None: all.
    """
    if lengths is None:
        return read[:, read.shape[1] - count :]
    places = lengths[:, None] + torch.arange(count, device=read.device)  # [R, count]
    return read.gather(1, places[..., None].expand(-1, -1, read.shape[2]))
