"""A launcher leaves nothing of what it has started."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import outdo
from outdo.extras.replicas import launch
from outdo.utils.errors import WorkerError

TRAINER = """#!{python}
import os, signal, threading, time
from pathlib import Path
from outdo.extras.remote_engines import process
from outdo.extras.replicas import launch

def die():
    while not list(Path(os.environ["TMPDIR"]).rglob("listener-*")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

launch.end_with_launcher()
process.PRELOADED = ["hangs"]
threading.Thread(target=die).start()
process.Process(1)
"""
"""Is killed between the start of the server that forks its processes, and the first of them."""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="o") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no fork server")
def test_a_trainer_that_is_killed_before_its_processes_start_leaves_no_folder(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(6000)\n")
    trainer = tmp_path / "trainer"
    trainer.write_text(TRAINER.format(python=sys.executable))
    trainer.chmod(0o700)
    monkeypatch.setenv("PYTHONPATH", f"{Path(outdo.__file__).parent.parent}:{tmp_path}")
    monkeypatch.setattr(sys, "executable", str(trainer))
    monkeypatch.setattr(launch, "GRACE", 0.5)
    with pytest.raises(WorkerError, match="was ended by SIGKILL"):
        launch.launch(1, [])
    assert not any(temporary.iterdir())
