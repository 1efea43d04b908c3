"""The record on disk: whole or not there, and read by what people have."""

import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_records import TOKEN_TEXTS, record_of, steps_of

import outdo.utils.atomic
from outdo.extras.record import parquet
from outdo.extras.record.table import record_table
from outdo.utils.errors import RunFolderError


def record(folder: Path, count: int = 3) -> Path:
    """The folder with a record of steps 1, 2, ... in it; every other rollout was asked again."""
    for step in steps_of(count):
        measured = [b % 2 == 0 for b in range(len(step.batch))]
        parquet.write(
            folder,
            step.index,
            record_table(step, record_of(step, measured=measured, seed=step.index), TOKEN_TEXTS, about={}),
        )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the record of three steps, to be read only."""
    return record(tmp_path_factory.mktemp("run"))


# ----------------------------------------------------------------------------------------------------- whole or not


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    step = steps_of(1)[0]
    written = record_table(step, record_of(step), TOKEN_TEXTS, about={"run": "add"})
    assert parquet.write(tmp_path, 40, written) == tmp_path / "tokens" / "step_000040.parquet"
    found = parquet.read(tmp_path, 40)
    assert found.to_pylist() == written.to_pylist()
    assert found.schema.names == written.schema.names
    assert parquet.metadata_of(found.schema)["run"] == "add"
    assert parquet.read(tmp_path, 40, ["reward", "clip"]).schema.names == ["reward", "clip"]


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "bit", "other"])
def test_a_damaged_file_is_named_and_others_stay_readable(tmp_path: Path, damage: str) -> None:
    path = parquet.path_of(record(tmp_path), 2)
    content = path.read_bytes()
    middle = len(content) // 3
    match damage:
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"\x00\xff" * 500)
        case "bit":
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        case _:
            pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(RunFolderError, match=r"step_000002\.parquet: "):
        parquet.read(tmp_path, 2)
    assert len(parquet.read(tmp_path, 1)) == len(parquet.read(tmp_path, 3)) == 12


def test_every_flipped_bit_of_the_numbers_is_found_or_harmless(tmp_path: Path) -> None:
    path = parquet.path_of(record(tmp_path, 1), 1)
    content, whole = path.read_bytes(), parquet.read(tmp_path, 1)
    numbers = len(content) - int.from_bytes(content[-8:-4], "little") - 8  # after them, the names of the columns
    for at in range(0, numbers, numbers // 100):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        try:
            found = parquet.read(tmp_path, 1)
        except RunFolderError:
            continue
        assert found.to_pydict() == whole.to_pydict(), at


def test_incomplete_files_of_a_crash_are_ignored(tmp_path: Path) -> None:
    path = parquet.path_of(record(tmp_path), 3)
    path.with_name(".step_000004.parquet.tmp").write_bytes(path.read_bytes()[:1000])
    (steps,) = duckdb.sql(f"SELECT list(DISTINCT step ORDER BY step) FROM '{tmp_path}/tokens/*.parquet'").fetchall()[0]
    assert steps == parquet.recorded_steps(tmp_path) == [1, 2, 3]
    parquet.remove_leftovers(tmp_path)
    assert not list((tmp_path / "tokens").glob(".*"))


def test_missing_records_and_columns_are_named(run: Path) -> None:
    with pytest.raises(RunFolderError, match=r"step_000009\.parquet: step 9 has no record; recorded steps: 1, 2, 3"):
        parquet.read(run, 9)
    with pytest.raises(RunFolderError, match=r"has no column 'rewards'; did you mean reward\?"):
        parquet.read(run, 1, ["step", "rewards"])


def test_a_record_of_a_newer_format_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    newer = pa.table({"a": [1]}, metadata={b"outdo": b'{"format": 2}'})
    pq.write_table(newer, parquet.path_of(tmp_path, 1))
    with pytest.raises(RunFolderError, match="has format 2; this outdo reads 1"):
        parquet.read(tmp_path, 1)


@pytest.mark.parametrize("operation", ["mkdir", "open", "write", "fsync", "rename"])
def test_a_failed_write_keeps_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    step = steps_of(1)[0]
    new = record_table(step, record_of(step), TOKEN_TEXTS, about={})
    if operation != "mkdir":
        record(tmp_path, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("step_*.parquet")}

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(outdo.utils.atomic.os, operation, refuse)
        with pytest.raises(RunFolderError, match=r"tokens.*No space left on device"):
            parquet.write(tmp_path, 1, new)
    assert {path: path.read_bytes() for path in tmp_path.rglob("step_*.parquet")} == before
    parquet.remove_leftovers(tmp_path)
    assert set(tmp_path.rglob("*.*")) == set(before)
    parquet.write(tmp_path, 1, new)
    assert parquet.read(tmp_path, 1).to_pylist() == new.to_pylist()


def test_reading_needs_no_torch() -> None:
    told = "import sys, outdo.extras.record.parquet; sys.exit(len({'torch', 'transformers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", told], check=False).returncode == 0
