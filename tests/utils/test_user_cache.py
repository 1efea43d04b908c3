"""A lock of the user's cache is held by one process, or one thread, at a time."""

import threading
import time
from pathlib import Path

from outdo.utils.user_cache import locked


def test_those_that_want_the_same_lock_have_it_one_after_another(tmp_path: Path):
    events: list[str] = []

    def hold() -> None:
        with locked(tmp_path / "lock"):
            events.append("begins")
            time.sleep(0.5)
            events.append("ends")

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events == ["begins", "ends"] * 3
