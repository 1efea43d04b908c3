"""The process of an implementation: `python -m benchmarks.suite.worker IMPLEMENTATION SETTING`, for `make bench`."""

import importlib
import os
import sys
import warnings
from collections.abc import Callable

import torch

from benchmarks.suite.implementations import IMPLEMENTATIONS, MACHINE
from benchmarks.suite.setting import Setting, Turns


def main() -> None:
    """Run it. The output of libraries goes to standard error, because standard output carries the turns."""
    name, text = sys.argv[1:]
    outbox = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    setting = Setting.loads(text)
    torch.set_num_threads(setting.threads)
    torch.manual_seed(setting.seed)
    module, _, function = {**IMPLEMENTATIONS, MACHINE.name: MACHINE}[name].run.partition(":")
    run: Callable[[Setting, Turns], None] = getattr(importlib.import_module(module), function)
    run(setting, Turns(sys.stdin, outbox))


if __name__ == "__main__":
    main()
