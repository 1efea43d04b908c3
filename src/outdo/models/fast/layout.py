"""What a flat row of several sequences asks of the layers of a model, and they of it.

Two kinds of layers read earlier tokens: attention, by keys and values, and layers with a state of constant size. Each
kind of these is a subclass of `StatefulLayer`, in a file of its own (`short_convolution.py`, `gated_delta_net.py`), and
a row of `STATEFUL` in `forward.py`. No layout and no cache knows them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


class UnknownAttentionError(ValueError):
    """A model attends in a way that no `Layout` computes; the message says which."""


class Rule(NamedTuple):
    """The options of attention in a layer of a model; in all of them no token reads later ones."""

    scaling: float  # scores are scaling · Q Kᵀ
    window: int | None = None  # how many tokens, itself included, a token may read (Mistral, Gemma)
    softcap: float | None = None  # scores become softcap · tanh(score / softcap) (Gemma 2)
    sinks: Tensor | None = None  # [heads] a score of each head for no token, in the sum of the softmax (gpt-oss)


State = tuple[Tensor, ...]
"""What a layer keeps of R sequences, however long they are: each tensor is [R, ...]. One row of it is about one
sequence, and can be copied, moved and dropped alone."""


class StatefulLayer:
    """A module of a model, in whose place outdo computes in the shared layout. A subclass computes one kind.

    A layout knows which tokens of a flat row are a sequence. Its method `scan` asks a layer for all that it needs:

    - A sequence begins with the state of `begin`.
    - `scan` reads the next tokens of each sequence, from the state before them, and returns the state after them. A
      decoding step is such a call, with one token of each.
    - The answers to a prompt begin with the state after the prompt, of which each takes a copy. So the gradient of an
      answer reaches the tokens of its prompt, and no other sequence.

    Sampling reads a prompt by `scan`, alone, and what comes after it by `scan_steps`: on a CPU in float32, the bits of
    a token there depend neither on the other sequences of a call, nor on how many tokens are read in the same call.
    So the next turn of an episode, which is read at once, has the bits of tokens that were sampled one by one.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @classmethod
    def computes(cls, module: nn.Module) -> bool:
        """Return whether a module looks like one of this kind; the probe then compares what is computed."""
        raise NotImplementedError

    def readers(self) -> Sequence[nn.Module]:
        """Return the linear layers that read the hidden states, which `forward` calls by `onednn.together`."""
        return ()

    def forward(self, hidden_states: Tensor, *, layout: "Layout", **options: Any) -> Tensor:
        """Compute the module on a flat row, [1, N, H] -> [1, N, H], by one call of `layout.scan`."""
        raise NotImplementedError

    def begin(self, inputs: Tensor) -> State:
        """Return the state before the first token of R sequences; `inputs` [R, L, C] has their dtype and device."""
        raise NotImplementedError

    def scan(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Read the next tokens of R sequences; differentiable, also with respect to the state.

        Args:
            inputs: all that the layer reads of each token, [R, L, C].
            lengths: how many of the L tokens of each sequence are real, [R]; after these is padding. None: all.
            state: the state before the first of these tokens.

        Returns:
            What the layer computes of each token, [R, L, D], anything on padding; the state after the last real token.
        """
        raise NotImplementedError

    def scan_steps(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Do as `scan` does, with the bits of decoding steps, which read one token of each sequence in a call."""
        return self.scan(inputs, lengths, state)


class Layout(Protocol):
    """The sequences in a flat row of N tokens, with what lets each token read the earlier ones of its sequence."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """query and key [1, heads, N, d], [1, kv_heads, N, d], value [1, kv_heads, N, e] -> [1, N, heads, e]."""
        ...

    def scan(self, inputs: Tensor, layer: StatefulLayer) -> Tensor:
        """Let a layer read all sequences by its state: what it reads of each token [1, N, C] -> [1, N, D]."""
        ...
