"""The space on a disk that the checkpoints of a run need."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from outdo.utils.errors import DiskFullError
from outdo.utils.sharded_tensors import own_part


def needed(weights: Mapping[str, Tensor], *, copies: int = 3, keep: int = 2, steps: int) -> int:
    """Estimate the bytes on disk that the checkpoints of the `steps` steps that are left need.

    `copies` is how often a checkpoint holds something of the size of `weights`: 3 for the weights and AdamW's two
    moments, one more for a reference. `keep` newest ones are kept; the best one, and the one being written, are added.
    No step has more than one checkpoint.
    """
    # Tied weights once. Of a divided weight, all parts count, and this process may hold none.
    distinct = {own_part(tensor).data_ptr() or id(tensor): tensor.nbytes for tensor in weights.values()}
    return min(keep + 2, steps) * (copies * sum(distinct.values()) + 2**24)  # 16 MiB: tokenizer, JSON, manifest


def check(folder: Path, size: int) -> None:
    """Raise DiskFullError unless `size` bytes are free on the disk of `folder`."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < size:
        raise DiskFullError(
            f"{folder}: the checkpoints will take about {size / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free. "
            "Free some space, put the run folder elsewhere, or lower checkpoint.keep."
        )
