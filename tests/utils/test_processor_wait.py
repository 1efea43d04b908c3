"""The share of their time in which threads wait for a processor, by counts that a test writes and by those of Linux."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from outdo.utils import processor_wait
from outdo.utils.processor_wait import ProcessorWait, share_so_far


def counted(folder: Path, **threads: tuple[int, int]) -> None:
    for name, (computed, waited) in threads.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"{computed} {waited} 7\n")


def test_it_is_what_all_threads_waited_of_what_they_computed_and_waited_since_the_last_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_wait, "THREADS", tmp_path)
    counted(tmp_path, first=(1000, 500))
    assert share_so_far() == pytest.approx(500 / 1500)
    wait = ProcessorWait()
    counted(tmp_path, first=(1600, 600), second=(200, 100))  # the second began in between
    assert wait.share() == pytest.approx(200 / 1000)
    assert wait.share() is None  # no thread did anything
    counted(tmp_path, second=(300, 100))
    (tmp_path / "first/schedstat").unlink()  # it ends while it is read
    assert wait.share() == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_a_thread_that_shares_its_processor_with_another_program_waits_for_about_half_of_its_time() -> None:
    """More, if other programs compute there too."""
    one = {min(os.sched_getaffinity(0))}
    other = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {one})\nwhile True: pass"])
    shares: list[float | None] = []

    def compute() -> None:
        os.sched_setaffinity(0, one)  # of this thread alone
        while Path(f"/proc/{other.pid}/status").read_text().count("\tR (") == 0:
            time.sleep(0.01)
        wait, until = ProcessorWait(), time.monotonic() + 2.0
        while time.monotonic() < until:
            pass
        shares.append(wait.share())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    other.kill()
    other.wait()
    assert shares[0] is not None
    assert shares[0] > 0.25
