"""The same examples in every run, and no deadline: a slow day is not a defect."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("outdo", deadline=None, derandomize=True, database=None)
settings.load_profile("outdo")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are computed in microseconds; waiting for a second thread on a busy machine takes longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
