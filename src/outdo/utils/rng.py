"""Random numbers without a state: every number is a function of a seed, a stream and a position."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy
from numpy.typing import NDArray


class Stream(NamedTuple):
    """The name of a stream of random numbers. Equal streams give equal numbers, on any machine, in any batch."""

    purpose: str  # "train", "eval", "chat" ...: evaluation never uses the numbers of training
    step: int  # training step the sampling belongs to
    prompt_id: str
    sample: int  # index within the group, 0 .. G-1


def stream_key(seed: int, stream: Stream) -> int:
    """Compute the key of a stream, 64 bits."""
    text = repr((seed, stream.purpose, stream.step, stream.prompt_id, stream.sample)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def uniforms(keys: NDArray[numpy.uint64], positions: NDArray[numpy.uint64]) -> NDArray[numpy.float64]:
    """Compute the number at each position of each stream, in [0, 1): SplitMix64 (Steele et al. 2014) without a state.

    It does not depend on the numbers drawn before, so a checkpoint saves no state of a generator.
    """
    x = keys + (positions + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    x = x ^ (x >> numpy.uint64(31))
    return (x >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53


def shuffled_epochs(count: int, seed: int, purpose: str) -> Iterator[int]:
    """Yield the indices 0 .. `count` − 1 in a random order, epoch after epoch, without end.

    Each epoch has its own order, which depends only on `seed` and `purpose`.
    """
    positions = numpy.arange(count, dtype=numpy.uint64)
    for epoch in itertools.count():
        key = stream_key(seed, Stream(purpose, epoch, "", 0))
        yield from uniforms(numpy.full_like(positions, key), positions).argsort(kind="stable").tolist()
