"""Run outdo with a GPU of which torch may take so many MiB: python -m benchmarks.gpu.limited MIB train ..."""

import sys

import torch

from outdo.cli.main import main as outdo


def main() -> None:
    """Limit the memory, and run the command."""
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(int(sys.argv.pop(1)) * 2**20 / total)
    outdo()


if __name__ == "__main__":
    main()
