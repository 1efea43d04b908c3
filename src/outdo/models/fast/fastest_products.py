"""Find out which library computes the products of a backward pass faster on this processor: by a measurement.

With AVX-512 oneDNN was up to twice as fast as MKL, with AVX2 MKL was 1.2 times as fast at the gradients of
weights. No name of a processor says which. A measurement is made once for a processor, a version of torch and the
matrices of a model, and kept, so that the load of the machine does not decide on the bits of a run.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from outdo.models.device import describe_hardware
from outdo.models.onednn import Gradients, Library, available, product
from outdo.utils.atomic import write_json_atomically
from outdo.utils.errors import RunFolderError
from outdo.utils.user_cache import locked, user_cache

ROWS = 512
"""Tokens of the products that are timed: there are some thousand in an update."""

ROUNDS = 5
"""How often each product is timed; the shortest time counts, which other programs change least."""

SMALLEST = 2**18
"""Weights of the largest matrix of a model below which nothing is measured: less than a tenth of a second is at stake
in a step, and a product takes as long to call as to compute."""

KINDS = 4
"""Shapes of matrices that are timed, those with most weights in all; a mixture of experts has more."""

LONGEST = 4096
"""Rows and columns of a timed matrix at most: in larger ones both libraries compute block after block of the same."""

FASTER = 1.05
"""How many times as fast as oneDNN MKL must be to be taken: less than that two measurements can differ."""

Matrix = tuple[int, int]  # rows and columns


class Measured(NamedTuple):
    """The faster libraries, and how many times as fast as oneDNN MKL was at each gradient."""

    gradients: Gradients
    input: float
    weight: float
    file: Path | None  # where the measurement is kept; None: it could not be written


def fastest_gradients(matrices: Sequence[Matrix]) -> Measured | None:
    """Return the faster libraries for a model's matrices; measured once, then read.

    None if there is nothing to choose: small matrices, or no oneDNN.
    """
    if not available() or max((rows * columns for rows, columns in matrices), default=0) < SMALLEST:
        return None
    key = {
        "processor": _processor(),
        "torch": torch.__version__,
        "matrices": [[*matrix, count] for matrix, count in sorted(Counter(matrices).items())],
    }
    file: Path | None = user_cache("products") / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.with_suffix(".lock")):  # runs that start beside each other take the same
            if not file.exists():
                write_json_atomically(file, {**key, "seconds": _measure(Counter(matrices))})
            seconds = json.loads(file.read_text())["seconds"]
    except (OSError, RunFolderError):  # a home folder that is read-only, or full
        file, seconds = None, _measure(Counter(matrices))
    faster = {name: by["onednn"] / by["mkl"] for name, by in seconds.items()}
    library: dict[str, Library] = {name: "mkl" if gain >= FASTER else "onednn" for name, gain in faster.items()}
    return Measured(Gradients(**library), **faster, file=file)


def _processor() -> str:
    """Return the kind of this processor, and the instructions that torch uses of it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().split("\n\n")[0].splitlines() if file.exists() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    names = (said[name] for name in ("model name", "cpu family", "model", "stepping") if name in said)
    return " ".join([*names, describe_hardware("cpu")])


def _measure(matrices: Mapping[Matrix, int]) -> dict[str, dict[Library, float]]:
    """Return the seconds of both gradients of all matrices, by either library.

    One thread computes, whose own time is known: of several, each waits for the one that another program delays.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times: dict[str, dict[Library, float]] = {name: {"onednn": 0.0, "mkl": 0.0} for name in Gradients._fields}
    largest = sorted(matrices, key=lambda matrix: -matrix[0] * matrix[1] * matrices[matrix])
    for matrix in largest[:KINDS]:
        rows, columns = (min(size, LONGEST) for size in matrix)
        grad_y, x, weight = torch.randn(ROWS, rows), torch.randn(ROWS, columns), torch.randn(rows, columns)
        for name, left, right in (("input", grad_y, weight), ("weight", grad_y.t(), x)):
            for library, seconds in _shortest(left, right).items():
                times[name][library] += seconds * matrices[matrix]
    torch.set_num_threads(threads)
    return times


def _shortest(left: Tensor, right: Tensor) -> dict[Library, float]:
    """Return the shortest time of a product by each library; they take turns, so that both meet the same neighbours."""
    libraries: tuple[Library, ...] = ("onednn", "mkl")
    best = dict.fromkeys(libraries, float("inf"))
    for _ in range(1 + ROUNDS):  # the first prepares
        for library in libraries:
            began = time.thread_time()  # without the time in which other programs run
            product(left, right, library)
            best[library] = min(best[library], time.thread_time() - began)
    return best
