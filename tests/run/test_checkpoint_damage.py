"""A damaged checkpoint is named, file and reason, and an older whole one is used; nothing in it is run or believed."""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_faults import flip_bit, holds, save, state, weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from outdo.run.checkpoints import checkpoint
from outdo.utils.errors import CheckpointError

OPENED: list[str] = []
sys.addaudithook(lambda event, arguments: OPENED.append(str(arguments[0])) if event == "open" else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, 20)
    save(tmp_path, 40)
    return tmp_path


def list_again(path: Path) -> None:
    """Write a manifest that agrees with what is there, as a forger would."""
    listed = {
        file.relative_to(path).as_posix(): {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "size": file.stat().st_size,
        }
        for file in path.rglob("*")
        if file.is_file() and file.name != "manifest.json"
    }
    write_manifest(path, listed)


def write_manifest(path: Path, listed: dict, step: int = 40) -> None:
    content = {"files": listed, "format": 4, "step": step}
    (path / "manifest.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


FILES = ["config.json", "model.safetensors", "state/state.json", "state/tensors.safetensors"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("position", [0, 0.5, 0.999])
def test_one_flipped_bit_in_any_file_is_found(folder, name, position):
    file = folder / "step_000040" / name
    flip_bit(file, int(position * file.stat().st_size))
    found = checkpoint.latest(folder)
    assert holds(found, 20)
    assert found.broken == (f"{file}: the SHA-256 is not the manifest's; the content has changed",)


def test_one_flipped_bit_at_any_place_of_the_manifest_is_found(folder):
    manifest = folder / "step_000040" / "manifest.json"
    content = manifest.read_bytes()
    for position in range(len(content)):
        flip_bit(manifest, position, bit=position % 8)
        assert checkpoint.verify(manifest.parent), f"bit {position % 8} of byte {position}"
        manifest.write_bytes(content)
    assert not checkpoint.verify(manifest.parent)


def another_step(path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(path.with_name("step_000020"), path)


def no_optimizer(path: Path) -> None:
    (path / "state/tensors.safetensors").unlink()
    list_again(path)


def listed_outside(path: Path) -> None:
    content = (path.parent / "step_000020/config.json").read_bytes()
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    manifest = json.loads((path / "manifest.json").read_bytes())
    write_manifest(path, manifest["files"] | {"../step_000020/config.json": entry})


def link_out(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").symlink_to(path.parent / "step_000020/config.json")


def pipe(path: Path) -> None:
    (path / "config.json").unlink()
    os.mkfifo(path / "config.json")  # reading it would wait for ever


def not_a_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def later_format(path: Path) -> None:
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 4', '"format": 5'))


def delete(path: Path) -> None:
    (path / "model.safetensors").unlink()


def extra_file(path: Path) -> None:
    (path / "model-00002.safetensors").write_bytes(b"more")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: os.truncate(path / "model.safetensors", 100), "model.safetensors: 100 bytes, the manifest says"),
        (delete, "model.safetensors: missing"),
        (lambda path: (path / "manifest.json").write_bytes(b""), "manifest.json: empty"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json: missing"),
        (lambda path: (path / "manifest.json").write_text("[" * 100_000), "manifest.json: not a manifest"),
        (later_format, "manifest.json: checkpoint format 5, and outdo "),
        (extra_file, "model-00002.safetensors: not in the manifest"),
        (another_step, "manifest.json: of step 20, in the folder step_000040"),
        (no_optimizer, "state/tensors.safetensors: missing"),
        (listed_outside, "'../step_000020/config.json', which is outside the checkpoint"),
        (link_out, "config.json: neither a file nor a folder"),
        (pipe, "config.json: neither a file nor a folder"),
        (not_a_folder, "step_000040: not a folder"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_it_is_used(folder, damage: Callable[[Path], None], why: str):
    damage(folder / "step_000040")
    found = checkpoint.latest(folder)
    assert holds(found, 20)
    assert len(found.broken) == 1
    assert why in found.broken[0]


@pytest.mark.parametrize("damage", [delete, not_a_folder])
def test_a_run_does_not_start_again_if_every_checkpoint_is_broken(folder, damage):
    damage(folder / "step_000020")
    damage(folder / "step_000040")
    with pytest.raises(CheckpointError, match=r"no checkpoint is whole") as raised:
        checkpoint.latest(folder)
    for expected in ("step_000020", "step_000040", f"remove {folder}"):
        assert expected in str(raised.value)


def test_no_checkpoint_at_all_is_no_error(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None
    (tmp_path / ".tmp-step_000001-1").mkdir()
    (tmp_path / "step_1").mkdir()
    assert checkpoint.latest(tmp_path) is None


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "state/optimizer.pt", "rng.PKL"])
@pytest.mark.parametrize("is_listed", [False, True], ids=["extra", "listed"])
def test_a_pickle_in_a_checkpoint_is_refused_without_opening_it(folder, tmp_path, name, is_listed):
    path = folder / "step_000040"
    (path / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    if is_listed:
        list_again(path)
    OPENED.clear()
    found = checkpoint.latest(folder)
    assert holds(found, 20)
    assert found.broken == (f"{path / name}: a pickle file can run code; it was not opened",)
    assert not any(opened.endswith(name) for opened in OPENED)
    assert any(opened.endswith("manifest.json") for opened in OPENED), "the watch itself works"
    assert not (tmp_path / "sprung").exists()


def test_a_model_that_writes_a_pickle_is_not_saved(tmp_path):
    def write(path: Path) -> None:
        save_file(weights(1), path / "model.safetensors")
        (path / "training_args.bin").write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"training_args\.bin: a pickle file"):
        checkpoint.save(tmp_path, 1, write, state(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["state/state.json", "state/tensors.safetensors"])
def test_a_state_is_not_loaded_from_a_damaged_or_missing_file(folder, name):
    file = folder / "step_000040" / name
    flip_bit(file, -1)
    with pytest.raises(CheckpointError, match=r"the content has changed"):
        checkpoint.load_state(file.parent.parent)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        checkpoint.load_state(file.parent.parent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(["$tensor", "$float", "$pairs", "dtype", "shape", "a"]), inside, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=40) | JSON.map(lambda tree: json.dumps(tree).encode()))
def test_every_forged_state_raises_a_checkpoint_error(folder, content):
    path = folder / "step_000040"
    (path / "state/state.json").write_bytes(content)
    list_again(path)
    with contextlib.suppress(CheckpointError):  # and no other
        assert isinstance(checkpoint.load_state(path), dict)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=40)
    | JSON.map(lambda tree: json.dumps({"files": tree, "format": 4, "step": 40}).encode())
)
def test_every_forged_manifest_is_refused_without_a_crash(folder, content):
    (folder / "step_000040" / "manifest.json").write_bytes(content)
    found = checkpoint.latest(folder)
    assert found.step == 20
    assert "step_000040" in found.broken[0]
