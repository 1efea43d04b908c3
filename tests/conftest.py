"""For every test: one torch thread, hypothesis with the same examples everywhere and no deadline, and Ctrl-C."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported, here and in every command started

from collections.abc import Iterator

import pytest
import shape_checks
import torch
from hypothesis import settings

shape_checks.install()  # before anything imports outdo.algorithms
settings.register_profile("outdo", deadline=None, derandomize=True, database=None)
settings.load_profile("outdo")

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in a job in the background of a shell, or after nohup
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors of tests are small: a second thread costs more than it gains, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
