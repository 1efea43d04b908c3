"""Find how many tokens can be computed at once: measured on a few tokens of the model itself, not guessed.

What a forward pass keeps for the backward pass grows by a number of bytes per token that depends on the model, the
precision and gradient checkpointing. Half of the free memory is divided by that number. If this is still too much, the
policy halves the tokens and continues.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from outdo.models.limits import LOGIT_BYTES, LOGIT_COLUMNS
from outdo.models.policy import Policy
from outdo.run.check.step_memory import FLOAT32, LOGIT_BUFFERS
from outdo.types import Batch
from outdo.utils.machine import free_main_memory

SHARE = 0.5
"""Share of the free memory that is used: allocators fragment it, and the backward pass has tensors of its own."""

PROBE = 128
"""Tokens of the measured sequences, if the run's longest are longer."""


def find_micro_batch_tokens(
    policy: Policy, *, longest: int, reserved: int = 0, replicas: int = 1, share: int = 1, free: int | None = None
) -> tuple[int, str]:
    """Return the tokens that can be computed at once, and why so many.

    That is a power of two, but at least one sequence of `longest` tokens. Of the `free` bytes (`None`: the free memory
    now), `reserved` are for what is not allocated yet; the `replicas` share the rest. `share` of them compute each
    sequence together.
    """
    free = free_memory(policy.device) if free is None else free
    per_token = bytes_per_token(policy, min(longest, PROBE)) + LOGIT_BUFFERS * FLOAT32 * LOGIT_COLUMNS
    available = int(SHARE * (free - reserved) / replicas) - LOGIT_BUFFERS * LOGIT_BYTES[policy.device.type]
    fitting = share * max(available // max(1, per_token), 0)
    tokens = max(longest, 1 << fitting.bit_length() >> 1)
    return tokens, f"{per_token:,} bytes per token, {SHARE:.0%} of {max(0, free - reserved) / 2**30:.1f} GiB free"


def bytes_per_token(policy: Policy, length: int) -> int:
    """Measure the bytes that one more token adds to what autograd keeps, in sequences of `length` tokens."""
    one, two = (saved_bytes(policy, rows, length) for rows in (1, 2))
    return -(-(two - one) // length)  # each row has its own prompt of one token


def saved_bytes(policy: Policy, rows: int, length: int) -> int:
    """Measure the bytes that autograd keeps of the forward pass of `rows` sequences, weights not counted."""
    with torch.enable_grad(), count_saved(policy.model) as count:
        batch = _sequences(rows, length).to(policy.device)
        hidden = policy.forward.with_weights(lambda: policy.forward.hidden(batch)[:1])
        del hidden
    return count.bytes


@dataclass
class SavedStorages:
    """Storages that autograd keeps for a backward pass."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # kept, so that no address is reused

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


@contextmanager
def count_saved(model: nn.Module) -> Iterator[SavedStorages]:
    """Collect what autograd keeps for the backward pass, without the weights of `model`."""
    of_model = {weight.untyped_storage().data_ptr() for weight in (*model.parameters(), *model.buffers())}
    count = SavedStorages()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in of_model:
            count.storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield count


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device; for a CPU, those of the machine or of the container that this runs in."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return free_main_memory()


def _sequences(rows: int, length: int) -> Batch:
    """Make sequences of `length` tokens, each alone in its group."""
    return Batch.of_tokens([(0,)] * rows, [(1,) * max(1, length - 1)] * rows)
