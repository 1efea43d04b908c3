"""What a reward worker may use: time, memory, processes, disk, and environment variables.

These limits stop accidents. They are no sandbox: the code in a worker has the user's files, network and permissions.
"""

import fnmatch
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from outdo.utils.errors import UserError
from outdo.utils.secrets import has_secret_name

if sys.platform != "win32":
    import resource

DEADLINE = 10.0
"""Default limit, in seconds, of one call of a reward function."""
MAX_FILE_BYTES = 8 * 2**30
"""The largest file that a worker can write: above the usual size of a file of model weights."""
MAX_FURTHER_PROCESSES = 4096
"""Processes and threads that the user may start besides those that run when the worker starts."""

HASH_SEED = "PYTHONHASHSEED"

# fmt: off
PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP", "XDG_*",
    "LD_LIBRARY_PATH", "DYLD_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "*_NUM_THREADS", "OMP_*", "MKL_*", "OPENBLAS_*",
    "CUDA_*", "NVIDIA_*", "TORCH_*", "PYTORCH_*", "TRANSFORMERS_*", "TOKENIZERS_*", "HF_*", "NLTK_DATA",
    "SSL_CERT_*", "REQUESTS_CA_BUNDLE",
)
# fmt: on
"""Patterns of the environment variables that a worker gets, except those whose names are those of secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What the worker processes of a reward may use."""

    timeout: float = DEADLINE
    """Seconds for one call of the function."""
    processor_seconds: float | None = None
    """Seconds that one call may compute; unlike `timeout` it does not depend on how busy the machine is."""
    memory: float | None = None
    """GiB of private memory of each process (Linux only); `None`: half of the machine's."""
    workers: int | None = None
    """Processes that score at the same time, if the function takes one completion; the others start when needed.

    `None` is one process, because each imports the file again and has its own copy of what it loads; for `math`, one
    for each core.
    """
    environment: Sequence[str] = ()
    """Environment variables that the worker gets besides `PASSED_ON`; also those of secrets."""

    def __post_init__(self) -> None:
        """Raise `UserError` for each variable of `environment` that is not set."""
        if missing := [name for name in self.environment if name not in os.environ]:
            reason = "which a reward shall get, is not set"
            raise UserError([f"the environment variable {name}, {reason}" for name in missing])

    @property
    def memory_bytes(self) -> int:
        """The memory of a process, in bytes."""
        return int(self.memory * 2**30) if self.memory is not None else machine_memory() // 2


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of its container if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or the text "max"
            total = min(total, int((Path("/sys/fs/cgroup") / name).read_text()))
    return total


def worker_environment(environment: Mapping[str, str], further: Sequence[str]) -> dict[str, str]:
    """Return the part of `environment` that a worker gets: `PASSED_ON`, without secrets, and `further` names.

    In each worker sets of texts have the same order, so that a reward that goes through one always returns the same.
    """
    passed_on = {
        name: value
        for name, value in environment.items()
        if name in further
        or (any(fnmatch.fnmatchcase(name, pattern) for pattern in PASSED_ON) and not has_secret_name(name))
    }
    return passed_on if HASH_SEED in further else {**passed_on, HASH_SEED: "0"}


def limit_resources(memory: int) -> None:
    """Limit what this process may use. A limit that is already lower stays; Linux exempts root from that of processes.

    The limit of memory counts private writable memory: address space that a GPU's driver only reserves is not counted.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    if sys.platform == "linux":
        _lower(resource.RLIMIT_DATA, memory)
        _lower(resource.RLIMIT_NPROC, running_threads(os.getuid()) + MAX_FURTHER_PROCESSES)
        with suppress(OSError):  # if memory runs out, Linux kills this process and not the trainer
            Path("/proc/self/oom_score_adj").write_text("1000")


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def running_threads(user: int) -> int:
    """Count the processes and threads of a user, as the kernel does for its limit."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended just now
            if process.stat().st_uid == user:
                count += len(os.listdir(process / "task"))
    return count
