"""A contender's process: `python -m benchmarks.suite.worker CONTENDER SETTING`, started by `make bench`."""

import importlib
import os
import sys
import warnings
from collections.abc import Callable

import torch

from benchmarks.suite.contenders import CONTENDERS, MACHINE
from benchmarks.suite.setting import Setting, Turns


def main() -> None:
    """Run it. What libraries print goes to standard error: standard output belongs to the turns."""
    name, text = sys.argv[1:]
    outbox = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    setting = Setting.loads(text)
    torch.set_num_threads(setting.threads)
    torch.manual_seed(setting.seed)
    module, _, function = {**CONTENDERS, MACHINE.name: MACHINE}[name].run.partition(":")
    run: Callable[[Setting, Turns], None] = getattr(importlib.import_module(module), function)
    run(setting, Turns(sys.stdin, outbox))


if __name__ == "__main__":
    main()
