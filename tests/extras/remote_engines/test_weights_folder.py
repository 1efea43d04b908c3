"""Weights in a folder that machines share: whole versions only, the last one kept, nothing left of what was killed."""

import os
import re
import time
from pathlib import Path

import pytest

from outdo.extras.remote_engines import weights_folder
from outdo.extras.remote_engines.weights_folder import PREFIX, WeightsFolder
from outdo.utils.errors import EngineError


def write(folder: Path) -> None:
    (folder / "weights").write_text("whole")


def abandoned(path: Path) -> Path:
    """A folder as a process leaves it that was killed while it wrote a delivery."""
    (path / ".3-4").mkdir(parents=True)
    (path / ".3-4" / "weights").touch()
    (path / "lock").touch()
    return path


def test_the_weights_of_a_process_that_was_killed_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_folder, "SHARED_MEMORY", tmp_path)
    left = abandoned(tmp_path / f"{PREFIX}old")
    used, other = WeightsFolder(), WeightsFolder()
    assert not left.exists()
    assert used.path.exists()
    used.close()
    other.close()
    assert os.listdir(tmp_path) == []


def test_in_a_shared_folder_only_what_this_machine_has_left_is_removed(tmp_path):
    mine = abandoned(tmp_path / f"{PREFIX}old@{os.uname().nodename}")
    others = abandoned(tmp_path / f"{PREFIX}old@elsewhere")
    WeightsFolder(parent=tmp_path).close()
    assert not mine.exists()
    assert others.exists()


def test_each_version_has_a_path_of_its_own_and_the_one_before_stays_until_the_next(tmp_path):
    folder = WeightsFolder(parent=tmp_path)
    first = folder.publish(5, [write])
    again = folder.publish(5, [write])
    assert (first.name, again.name) == ("5-1", "5-2")
    assert first.exists()
    third = folder.publish(6, [write])
    assert sorted(path.name for path in folder.path.iterdir()) == ["5-2", "6-3", "lock"]
    assert (third / "weights").read_text() == "whole"
    folder.close()
    assert os.listdir(tmp_path) == []


def test_a_version_that_is_not_whole_is_never_seen(tmp_path):
    folder = WeightsFolder(parent=tmp_path)

    def look(aside: Path) -> None:
        assert (aside / "weights").exists()
        assert [path.name for path in folder.path.glob("[!.l]*")] == []
        raise OSError(28, "No space left on device")

    with pytest.raises(EngineError, match=rf"{re.escape(str(folder.path))}: weights cannot be written: .*No space"):
        folder.publish(0, [write, look])
    assert [path.name for path in folder.path.glob("[!.l]*")] == []
    assert folder.publish(0, [write]).name == "0-2"
    assert [path.name for path in folder.path.glob(".*")] == []  # what had not become whole


def test_a_file_system_that_does_not_answer_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_folder, "SECONDS", 0.2)
    with pytest.raises(EngineError, match=r"weights cannot be written: no result after 0.2 s"):
        WeightsFolder(parent=tmp_path).publish(0, [lambda folder: time.sleep(10)])
