"""For every test: one torch thread, hypothesis with the same examples everywhere and no deadline, and Ctrl-C.

Tests of whole runs come first, so that no process is left with a file of slow tests when the others have ended.
"""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported, here and in every command started

from collections.abc import Iterator
from pathlib import Path

import pytest
import shape_checks
import smollm2 as real_model
import torch
from hypothesis import settings

shape_checks.install()  # before anything imports outdo.algorithms
settings.register_profile("outdo", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("outdo")

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in a job in the background of a shell, or after nohup
        signal.signal(number, handler)


SLOWEST = (
    *("run", "extras", "documentation", "test_one_file.py", "test_rooms.py", "rewards", "rollouts", "algorithms"),
    *("mutants", "cli", "test_light_start.py", "benchmarks", "models"),
)
"""Folders and files by the time that a file takes, the longest first; other tests follow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by their places; `make test` gives the files to its processes in this order."""
    tests = Path(__file__).parent
    place = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path.relative_to(tests).parts[0], len(place)))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors of tests are small: a second thread costs more than it gains, most of all on a busy machine.

    A run in this process lets torch use only deterministic algorithms, which no later test is to depend on.
    """
    before, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.set_deterministic_debug_mode(mode)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct: see tests/support/smollm2.py."""
    return real_model.model_folder()


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct: see tests/support/smollm2.py."""
    return real_model.gguf_file()
