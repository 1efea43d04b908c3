"""Measure for how long training waits for a checkpoint: written while it waits, and in the background.

    python benchmarks/background_save.py [--hidden 512] [--layers 8] [--times 4]

It saves a model with AdamW's moments in turn in both ways, and prints the seconds for which each save blocks, of the
clock and of the processor, and by how much the memory of the process grows. The first save in the background makes the
copy, whose memory later ones use again.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.run.checkpoints.checkpoints import Checkpoints
from outdo.run.checkpoints.state import Progress, content_of
from outdo.run.checkpoints.state_file import state_bytes
from outdo.testing import tiny_model


def main() -> None:
    """Save in turn in both ways, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("hidden", 512), ("layers", 8), ("times", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        measure(Path(folder), asked.hidden, asked.layers, asked.times)


def measure(folder: Path, hidden: int, layers: int, times: int) -> None:
    """Print a line for each save, and the ratios."""
    tiny_model(folder / "model", hidden=hidden, layers=layers)
    run: Any = run_with(Policy.load(folder / "model", device="cpu"))
    checkpoints = Checkpoints(SimpleNamespace(checkpoints=folder / "checkpoints"), run, saved=0)  # type: ignore[arg-type]
    content = content_of(run, Progress(step=1))
    size = state_bytes({"weights": run.models.policy.optimiser.weights, "state": content.state})
    print(f"{size / 2**20:.0f} MiB of weights and moments")
    took: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for step in range(1, 2 * times + 1):
        waits, before, clock, processor = step % 2 == 1, memory(), time.perf_counter(), time.thread_time()
        checkpoints.save(Progress(step=step), wait=waits)
        took[waits].append((time.perf_counter() - clock, time.thread_time() - processor))
        checkpoints.wait()
        how, (seconds, busy) = "waits" if waits else "background", took[waits][-1]
        print(
            f"{how:10}  blocked {seconds:.3f} s, processor {busy:.3f} s, memory {(memory() - before) / 2**20:+.0f} MiB"
        )
    checkpoints.close()
    for index, kind in enumerate(("time", "processor time")):
        ratio = median(each[index] for each in took[False]) / median(each[index] for each in took[True])
        print(f"blocked {kind} in the background / waiting: {ratio:.2f}")


def run_with(policy: Policy) -> SimpleNamespace:
    """Return what saving needs of a run that trains `policy`, after a step."""
    for weight in policy.optimiser.weights.values():
        weight.grad = torch.randn_like(weight)
    policy.optimiser.step(1.0)
    return SimpleNamespace(
        models=Models(policy),
        recipe=SimpleNamespace(checkpoint=SimpleNamespace(keep=2)),
        method=SimpleNamespace(adaptive={}),
        reward=SimpleNamespace(learning=[]),
        watchers=[],
        sampling=SimpleNamespace(rollouts=SimpleNamespace(state=lambda after: {})),
        identity={},
    )


def memory() -> int:
    """Return the bytes of memory of this process, without mapped files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


if __name__ == "__main__":
    main()
