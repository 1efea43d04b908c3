"""The modes in which the built-in engine samples, and the choice between them."""

from typing import NamedTuple


class SamplingMode(NamedTuple):
    """A mode in which the built-in engine samples."""

    name: str
    continuous: bool = False  # by outdo's own cache, which needs the shared forward pass; else by `model.generate`
    captured: bool = False  # its steps as graphs of the device: see `device_steps`
    mix_lengths: bool = True  # prompts of different lengths are padded on the left; else a batch has one length
    use_cache: bool = True  # else each token takes a forward pass of its whole sequence
    whole_cache: bool = False  # its cache drops nothing, whatever windows the configuration of the model names


MODES = (
    SamplingMode("continuous batching with captured steps", continuous=True, captured=True),
    SamplingMode("continuous batching", continuous=True),
    SamplingMode("model.generate"),
    SamplingMode("model.generate with a cache of all tokens", whole_cache=True),
    SamplingMode("model.generate with prompts of one length at a time", mix_lengths=False),
    SamplingMode("model.generate without a cache", mix_lengths=False, use_cache=False),
)
"""The modes, the fastest first."""


class SamplingChoice(NamedTuple):
    """The mode chosen for a model, and what was wrong with each faster one."""

    mode: SamplingMode
    faults: tuple[str, ...] = ()
