"""Whatever the disk refuses and whenever the process dies: the checkpoint before it stays, or the new one is whole."""

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint_faults
import pytest
from checkpoint_faults import FaultyOs, ended_process, flip_bit, holds, leftovers, save, state, write_model
from run_cases import MAY_MOUNT
from safetensors import SafetensorError

from outdo.run.checkpoints import checkpoint
from outdo.utils import atomic
from outdo.utils.errors import CheckpointError, DiskFullError


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Step 20 is whole, step 40 is broken, and a killed save left its folder."""
    folder = tmp_path / "checkpoints"
    save(folder, 20)
    flip_bit(save(folder, 40) / "model.safetensors", -1)
    shutil.copytree(folder / "step_000020", folder / f".tmp-step_000040-{ended_process()}")
    return folder


def refuse(number: int):
    def fault():
        raise OSError(number, os.strerror(number))

    return fault


@pytest.mark.parametrize(
    ("number", "lasting"),
    [(errno.EIO, False), (errno.ENOSPC, True)],
    ids=["an error once", "a full disk from then on"],
)
def test_any_operation_may_fail_and_nothing_earlier_is_lost(start, tmp_path, monkeypatch, number, lasting):
    for n in range(1, 1000):
        folder = shutil.copytree(start, tmp_path / str(n))
        disk = FaultyOs(n, refuse(number), lasting=lasting)
        monkeypatch.setattr(atomic, "os", disk)
        try:
            save(folder, 40)
            error = None
        except CheckpointError as raised:
            error = raised
        monkeypatch.setattr(atomic, "os", os)

        found = checkpoint.latest(folder)
        assert holds(found, 20) or holds(found, 40), f"operation {n}"
        assert error is not None or holds(found, 40), f"operation {n}: said to be saved, and is not"
        if error is not None:
            assert isinstance(error, DiskFullError) == (number in (errno.ENOSPC, errno.EDQUOT))
            assert os.strerror(number) in str(error) or "no space left" in str(error)
        assert holds(checkpoint.latest(save(folder, 40).parent), 40), f"operation {n}: no save possible afterwards"
        assert leftovers(folder) == [], f"operation {n}"
        shutil.rmtree(folder)
        if disk.count < n:
            break
    assert n > 30, "so few operations cannot have been a whole save"


def test_a_kill_at_any_operation_leaves_the_old_or_the_new_checkpoint(start, tmp_path):
    copies = tmp_path / "copies"
    script = Path(checkpoint_faults.__file__)
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # forks: no threads to lose
    subprocess.run([sys.executable, script, start, copies, "40"], check=True, env=one_thread, timeout=600)

    killed = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(killed) > 30
    steps = []
    for folder in killed:
        found = checkpoint.latest(folder)
        assert found is not None
        assert holds(found, found.step), f"killed at operation {folder.name}"
        steps.append(found.step)
        assert holds(checkpoint.latest(save(folder, 40).parent), 40)
        assert leftovers(folder) == [], f"killed at operation {folder.name}"
    assert steps == sorted(steps), "once published, always published"
    assert set(steps) == {20, 40}


def test_every_file_and_folder_is_on_disk_before_the_rename_that_publishes_it(tmp_path, monkeypatch):
    calls: list[tuple[str, str]] = []
    paths: dict[int, str] = {}

    class Recorder:
        def __getattr__(self, name):
            return getattr(os, name)

        def open(self, path, *arguments):
            descriptor = os.open(path, *arguments)
            paths[descriptor] = str(path)
            return descriptor

        def fsync(self, descriptor):
            calls.append(("fsync", paths[descriptor]))
            os.fsync(descriptor)

        def rename(self, source, target):
            calls.append(("rename", str(target)))
            os.rename(source, target)

    folder = tmp_path / "checkpoints"
    monkeypatch.setattr(atomic, "os", Recorder())
    target = save(folder, 1)

    published = calls.index(("rename", str(target)))
    aside = f"{folder}/.tmp-step_000001-{os.getpid()}"
    synced = {path for what, path in calls[:published] if what == "fsync"}
    inside = [path.relative_to(target).as_posix() for path in target.rglob("*")]
    assert synced >= {aside, *(f"{aside}/{name}" for name in inside)}
    assert ("fsync", str(folder)) in calls[published:], "the folder that holds the new name"
    assert ("fsync", str(tmp_path)) in calls[:published], "the folder that holds the checkpoints"
    last_written = [path for what, path in calls[:published] if what == "fsync" and Path(path).name.endswith(".json")][
        -1
    ]
    assert last_written == f"{aside}/manifest.json"


def test_a_full_disk_while_the_model_is_written_is_reported_as_such(start):
    def write(path: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:  # the kernel answers: no space left on device
            full.write(b"weights")

    with pytest.raises(DiskFullError, match=r"step_000060: no space left.*unchanged"):
        checkpoint.save(start, 60, write, state(60))
    assert holds(checkpoint.latest(start), 20)
    assert leftovers(start) == []


@pytest.mark.skipif(not MAY_MOUNT, reason="no permission to mount a small disk")
def test_a_disk_that_is_full_at_any_place_of_a_save_keeps_the_earlier_checkpoint(tmp_path):
    script = Path(checkpoint_faults.__file__).with_name("small_disk_saves.py")
    command = ["unshare", "-rm", sys.executable, script, tmp_path]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    assert int(done.stdout) > 3  # places at which the disk was full


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EDQUOT, DiskFullError), (errno.EROFS, CheckpointError), (errno.ESTALE, CheckpointError)]
)
def test_each_disk_error_has_its_own_exception(start, monkeypatch, number, kind):
    monkeypatch.setattr(atomic, "os", FaultyOs(10, refuse(number)))
    with pytest.raises(CheckpointError) as raised:
        save(start, 60)
    assert type(raised.value) is kind
    assert "step_000060" in str(raised.value)


@pytest.mark.parametrize(
    "error",  # word for word what they raise on a file system of 256 KiB
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),
    ],
    ids=["safetensors", "tokenizers"],
)
def test_a_full_disk_inside_a_library_in_rust_is_reported_as_such(start, error):
    def write(path: Path) -> None:
        raise error

    with pytest.raises(DiskFullError, match="no space left"):
        checkpoint.save(start, 60, write, state(60))
    assert leftovers(start) == []


def test_an_error_inside_safetensors_is_reported_like_any_other(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the kernel answers: file too large
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            save(start, 60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert holds(checkpoint.latest(start), 20)
    assert leftovers(start) == []


def test_a_model_that_cannot_be_written_leaves_nothing_behind(start):
    def write(path: Path) -> None:
        (path / "config.json").write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(start, 60, write, state(60))
    assert leftovers(start) == []
    assert holds(checkpoint.latest(start), 20)


def test_a_whole_checkpoint_is_never_written_again(tmp_path):
    path = save(tmp_path, 20)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert checkpoint.save(tmp_path, 20, write_model(99), state(99)) == path
    assert before == {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_folders_of_a_save_that_still_runs_are_left_alone(tmp_path):
    running = tmp_path / f".tmp-step_000040-{os.getppid()}"
    running.mkdir()
    own = tmp_path / f".tmp-step_000040-{os.getpid()}-pruned"
    own.mkdir()
    dead_link = tmp_path / f".tmp-step_000060-{ended_process()}-replaced"
    dead_link.symlink_to("nowhere")
    checkpoint.remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == [running.name]


def test_a_prune_that_stops_anywhere_leaves_no_broken_checkpoint(tmp_path, monkeypatch):
    start = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        save(start, step)
    for n in range(1, 100):
        folder = shutil.copytree(start, tmp_path / str(n))
        disk = FaultyOs(n, refuse(errno.EIO), lasting=True)
        monkeypatch.setattr(atomic, "os", disk)
        with contextlib.suppress(CheckpointError):
            checkpoint.prune(folder, keep=1)
        monkeypatch.setattr(atomic, "os", os)
        assert all(checkpoint.verify(path) == [] for path in folder.glob("step_*")), f"operation {n}"
        if disk.count < n:
            break
    assert n > 10
