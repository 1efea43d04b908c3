"""How many tokens may be computed at once: counted on a few tokens of the model itself, not guessed.

What a forward pass keeps for the backward pass grows with its tokens by a number of bytes that depends on the model, on
precision and on recomputation. Half of the free memory is divided by it. Where that was too much after all, the policy
takes half as many tokens, and goes on.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from outdo.models.policy import Policy
from outdo.trainer.cost import FLOAT32, LOGIT_BYTES, LOGIT_COLUMNS, LOGITS
from outdo.types import Batch

SHARE = 0.5
"""Of the free memory: allocators break it into pieces, and the backward pass has tensors of its own."""

PROBE = 128
"""Tokens of the sequences that are counted, if the run's longest are longer."""


def find_micro_batch_tokens(
    policy: Policy, *, longest: int, to_come: int = 0, workers: int = 1, free: int | None = None
) -> tuple[int, str]:
    """Tokens that may be computed at once, a power of two, or one sequence of `longest` tokens; and why so many.

    Of the `free` bytes (`None`: as they are now), `to_come` are going to be taken by what is not there yet, and the
    rest is shared by so many `workers`.
    """
    free = free_memory(policy.device) if free is None else free
    each = bytes_per_token(policy, min(longest, PROBE)) + LOGITS * FLOAT32 * LOGIT_COLUMNS
    room = int(SHARE * (free - to_come) / workers) - LOGITS * LOGIT_BYTES[policy.device.type]
    fitting = max(room // max(1, each), 0)
    tokens = max(longest, 1 << fitting.bit_length() >> 1)
    return tokens, f"{each:,} bytes for each, in {SHARE:.0%} of {max(0, free - to_come) / 2**30:.1f} GiB free"


def bytes_per_token(policy: Policy, length: int) -> int:
    """Bytes that one more token adds to what autograd keeps of a forward pass, in sequences of `length` tokens."""
    one, two = (saved_bytes(policy, rows, length) for rows in (1, 2))
    return -(-(two - one) // length)  # the second row's prompt, a token long, is a group's own


def saved_bytes(policy: Policy, rows: int, length: int) -> int:
    """Bytes that autograd keeps of the forward pass of so many sequences, weights not counted; each storage once."""
    with torch.enable_grad(), counted(policy.model) as count:
        hidden = policy.forward.hidden(_sequences(rows, length).to(policy.device))
        del hidden
    return count.bytes


@dataclass
class Count:
    """Storages that were kept for a backward pass."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # held, so that no address comes again

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


@contextmanager
def counted(model: nn.Module) -> Iterator[Count]:
    """Count what autograd keeps for the backward pass, but for the weights of `model`."""
    own = {weight.untyped_storage().data_ptr() for weight in (*model.parameters(), *model.buffers())}
    count = Count()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            count.storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield count


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device: on a CPU what the machine has left, or the container this runs in."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return min(_available(), _allowed())


def _available() -> int:
    """What the machine has left, by Linux's own estimate; elsewhere, half of what it has."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _allowed(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What the limit of a container leaves; file caches give way. Without a limit, more than any machine has."""
    for limit, used, stat in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        if (root / limit).exists() and (most := (root / limit).read_text().strip()).isdigit():
            caches = dict(line.split() for line in (root / stat).read_text().splitlines())
            return int(most) - int((root / used).read_text()) + int(caches.get("inactive_file", 0))
    return 1 << 62


def _sequences(rows: int, length: int) -> Batch:
    """Sequences of `length` tokens, each of them alone in its group."""
    return Batch.of_tokens([(0,)] * rows, [(1,) * max(1, length - 1)] * rows)
