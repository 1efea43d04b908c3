"""Save on a disk of 256 KiB that is full at every place of a save; a program for a namespace that may mount it."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from checkpoint_faults import holds, leftovers, save

from outdo.run.checkpoints import checkpoint
from outdo.utils.errors import DiskFullError

PAGE = 4096


def fill(path: Path, free: int) -> None:
    """Leave `free` bytes of the disk."""
    with path.open("wb", buffering=0) as filler:
        with suppress(OSError):
            while True:
                filler.write(bytes(PAGE))
        filler.truncate(filler.tell() - free)


def main(disk: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    folder, filler, refused = disk / "checkpoints", disk / "filler", 0
    save(folder, 20)
    step = 20
    while step == 20:
        fill(filler, refused * PAGE)
        with suppress(DiskFullError):
            save(folder, 40)
        found = checkpoint.latest(folder)
        assert found is not None
        step = found.step
        assert holds(found, step)
        assert leftovers(folder) == []
        filler.unlink()
        refused += 1
    print(refused - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
