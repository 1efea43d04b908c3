"""A disk that refuses, or a process that dies, at the N-th operation; and a small checkpoint to try it on.

Run as a program, it saves into copies of a folder again and again, killed one operation later each time.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outdo.run.checkpoints import checkpoint
from outdo.utils import atomic

OPERATIONS = frozenset({"open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"})


class FaultyOs:
    """Replaces `os` in `utils/atomic.py`; calls `fault` in place of the N-th operation, or of all from there on."""

    def __init__(self, n: int, fault: Callable[[], Any], *, lasting: bool = False) -> None:
        self.n, self.fault, self.lasting, self.count = n, fault, lasting, 0

    def __getattr__(self, name: str) -> Any:
        original = getattr(os, name)
        return partial(self._counted, original) if name in OPERATIONS else original

    def _counted(self, original: Callable[..., Any], *arguments: Any) -> Any:
        self.count += 1
        if self.count == self.n or (self.lasting and self.count > self.n):
            self.fault()
        return original(*arguments)


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.arange(64, dtype=torch.float32).reshape(8, 8) + step, "layer.bias": torch.zeros(8)}


def write_model(step: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        atomic.write_file(path / "config.json", b'{"model_type": "tiny"}')
        save_file(weights(step), path / "model.safetensors")

    return write


def state(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "optimizer": {0: {"exp_avg": torch.full((3,), step / 7)}},
        "lr": 0.1,
        "done": [1, "two", None],
    }


def save(folder: Path, step: int) -> Path:
    return checkpoint.save(folder, step, write_model(step), state(step))


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, tensors and floats bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        same_form = left.dtype == right.dtype and left.shape == right.shape
        return same_form and checkpoint.weights_hash({"": left}) == checkpoint.weights_hash({"": right})
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left.hex() == right.hex() if isinstance(left, float) else left == right


def holds(found: checkpoint.CheckpointInfo | None, step: int) -> bool:
    """Whether this is the checkpoint of `step`, weights and state."""
    assert found is not None
    is_state = same(checkpoint.load_state(found.path), state(step))
    return found.step == step and is_state and same_weights(found.path, step)


def same_weights(path: Path, step: int) -> bool:
    return checkpoint.weights_hash(path) == checkpoint.weights_hash(weights(step))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


def ended_process() -> int:
    """The id of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def kill_at_each_operation(start: Path, copies: Path, step: int) -> None:
    """Save `step` into copies/1, copies/2 ..., the N-th killed in place of its N-th operation, until one survives."""
    n, status = 0, -1
    while status != 0:
        n += 1
        folder = shutil.copytree(start, copies / str(n))
        child = os.fork()
        if child == 0:
            atomic.os = FaultyOs(n, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save(folder, step)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), f"operation {n}: ended with status {status}"


if __name__ == "__main__":
    kill_at_each_operation(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
