"""What holds for every test of this folder."""

from collections.abc import Iterator

import pytest
from engine_cases import threads
from hypothesis import settings

# The same examples on every machine, however slow its day.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from a second thread, and lose much where another process wants it too."""
    with threads(1):
        yield
