"""What is saved comes back bit for bit, loads as a Hugging Face model, and old checkpoints go when they may."""

import collections
import json
import math
import shutil
import struct
from pathlib import Path

import pytest
import safetensors.torch as safetensors
import torch
from checkpoint_faults import flip_bit, holds, same, same_weights, save, state, weights, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.state_file import NATIVE, pack, unpack
from outdo.run.folder import free_space
from outdo.utils.errors import CheckpointError, DiskFullError
from outdo.utils.world import World

DTYPES = sorted(
    NATIVE | {torch.complex64, torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu},
    key=str,
)


def through_disk(value, tmp_path):
    checkpoint.save(tmp_path, 1, write_model(1), value)
    loaded = checkpoint.load_state(tmp_path / "step_000001")
    shutil.rmtree(tmp_path / "step_000001")
    return loaded


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_any_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype):
    def tensor_of(shape):
        content = torch.arange(math.prod(shape) * dtype.itemsize, dtype=torch.int32).to(torch.uint8)
        content = content % 2 if dtype == torch.bool else content
        return content.view(dtype).reshape(shape)

    tensors = {str(shape): tensor_of(shape) for shape in [(), (0,), (3, 0, 2), (5,), (2, 3)]}
    assert same(through_disk(tensors, tmp_path), tensors)


def test_tensors_that_share_memory_or_are_views_come_back_as_tensors_of_their_own(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    shared = {
        "whole": whole,
        "row": whole[1],
        "column": whole[:, 1],
        "transposed": whole.T,
        "again": whole,
        "expanded": torch.ones(1).expand(4),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    loaded = through_disk(shared, tmp_path)
    for name, tensor in shared.items():
        assert torch.equal(loaded[name], tensor.detach()), name
        assert not loaded[name].requires_grad
    loaded["whole"].zero_()
    assert torch.equal(loaded["again"], whole)


KEYS = st.text(max_size=5) | st.integers() | st.sampled_from(["$tensor", "$float", "$pairs", "__metadata__"])
TENSORS = st.lists(st.floats(width=32), max_size=4).map(torch.tensor)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | TENSORS,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(KEYS, inside, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(value=st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_nested_state_comes_back_bit_for_bit(value):
    tree, tensors = pack(value)
    assert same(
        unpack(json.loads(json.dumps(tree, allow_nan=False)), safetensors.load(safetensors.save(tensors))), value
    )


def test_floats_keep_every_bit(tmp_path):
    payload = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    floats = [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, payload]
    loaded = through_disk({"floats": floats}, tmp_path)["floats"]
    assert [struct.pack(">d", value) for value in loaded] == [struct.pack(">d", value) for value in floats]


def test_tuples_and_ordered_mappings_come_back_as_lists_and_dicts(tmp_path):
    given = {"betas": (0.9, 0.999), "groups": collections.OrderedDict(lr=1)}
    assert same(through_disk(given, tmp_path), {"betas": [0.9, 0.999], "groups": {"lr": 1}})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"rng": {"set": {1, 2}}}, r"state\[rng\]\[set\] is a builtins.set"),
        ({"a": [object()]}, r"state\[a\]\[0\] is a builtins.object"),
        ({"a": {(1, 2): 3}}, r"state\[a\] has the key \(1, 2\)"),
        ({"a": torch.eye(2).to_sparse()}, r"state\[a\] is a sparse"),
        ({"a": torch.empty(2, device="meta")}, r"state\[a\] is a sparse, quantised or meta"),
    ],
)
def test_a_value_that_cannot_be_saved_is_reported_with_its_place(tmp_path, value, why):
    with pytest.raises(CheckpointError, match=why):
        checkpoint.save(tmp_path, 1, write_model(1), value)
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_the_tree_names_must_be_there():
    tree, tensors = pack({"a": torch.ones(2)})
    with pytest.raises(CheckpointError, match="tensor 'a' of the training state is missing"):
        unpack(tree, {})
    assert same(unpack(tree, tensors), {"a": torch.ones(2)})


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"$tensor": "bytes", "dtype": "load", "shape": [8]}, "no usable dtype and shape"),
        ({"$tensor": "bytes", "dtype": "float32"}, "no usable dtype and shape"),
        ({"$tensor": "floats", "dtype": "complex64", "shape": [1]}, "no usable dtype and shape"),
        ({"$tensor": "bytes", "dtype": "complex64", "shape": [3]}, "does not fit its shape"),
        ({"$tensor": "bytes", "dtype": "complex64", "shape": ["x"]}, "does not fit its shape"),
        ({"$float": "7ff8"}, "instead of the bits of a number"),
        ({"$pairs": [[1]]}, "an object that outdo does not write"),
        ({"$pairs": [[[1], 2]]}, "an object that outdo does not write"),
        ({"$call": "os.system"}, "an object that outdo does not write"),
    ],
)
def test_a_forged_tree_is_refused(tree, why):
    tensors = {"bytes": torch.zeros(8, dtype=torch.uint8), "floats": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=why):
        unpack({"inside": [tree]}, tensors)


def test_a_checkpoint_is_a_model_folder(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    path = checkpoint.save(tmp_path, 40, model.save_pretrained, state(40))
    assert path == tmp_path / "step_000040"
    loaded = AutoModelForCausalLM.from_pretrained(path)
    assert checkpoint.weights_hash(loaded.state_dict()) == checkpoint.weights_hash(model.state_dict())
    found = checkpoint.latest(tmp_path)
    assert found == checkpoint.CheckpointInfo(path=path, step=40, broken=())


def test_others_may_read_a_checkpoint_where_they_may_read_other_files(tmp_path):
    path = save(tmp_path, 1)
    (tmp_path / "usual").write_text("")
    usual = (tmp_path / "usual").stat().st_mode
    assert {file.stat().st_mode for file in path.rglob("*") if file.is_file()} == {usual}


def test_a_broken_checkpoint_is_replaced_by_the_next_save_of_its_step(tmp_path):
    flip_bit(save(tmp_path, 20) / "state/state.json", 5)
    assert checkpoint.verify(tmp_path / "step_000020")
    save(tmp_path, 20)
    assert holds(checkpoint.latest(tmp_path), 20)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000020"]


def steps_in(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in folder.iterdir())


@pytest.fixture
def five(tmp_path):
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step)
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(2, None, [4, 5]), (2, 1, [1, 4, 5]), (1, 5, [5]), (9, None, [1, 2, 3, 4, 5]), (1, 77, [5])],
)
def test_the_newest_and_the_best_are_kept(five, keep, best, left):
    removed = checkpoint.prune(five, keep, best)
    assert steps_in(five) == left
    assert sorted(path.name for path in removed) == [f"step_{step:06d}" for step in range(1, 6) if step not in left]


def test_the_newest_whole_checkpoint_is_never_removed(five):
    for step in (4, 5):
        flip_bit(five / f"step_{step:06d}" / "model.safetensors", -1)
    checkpoint.prune(five, keep=2)
    assert steps_in(five) == [3, 4, 5]
    assert holds(checkpoint.latest(five), 3)


def test_nothing_is_removed_where_nothing_is_whole(five):
    for step in steps_in(five):
        (five / f"step_{step:06d}" / "manifest.json").unlink()
    assert checkpoint.prune(five, keep=1) == []
    assert steps_in(five) == [1, 2, 3, 4, 5]


def test_at_least_one_checkpoint_is_kept(five):
    with pytest.raises(ValueError, match="keep = 0"):
        checkpoint.prune(five, keep=0)


def test_too_little_space_is_an_error_before_the_first_save(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    free_space.check(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(DiskFullError, match=r"will take about .* GiB, and .* GiB are free"):
        free_space.check(tmp_path / "not" / "there" / "yet", 2 * free)


def test_the_estimate_covers_what_a_run_really_writes(tmp_path):
    model = {name: torch.randn(500, 500) for name in ("a", "b", "c")}
    moments = {name: {"exp_avg": tensor.clone(), "exp_avg_sq": tensor.clone()} for name, tensor in model.items()}

    def write(path):
        save_file(model, path / "model.safetensors")

    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, write, {"optimizer": moments})
    written = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    tied = {"tied to a": model["a"].detach()}
    for steps in (3, 30):
        needed = free_space.needed(model | tied, keep=1, steps=steps)
        assert written <= needed <= written + 3 * 2**24
    assert free_space.needed(model | tied, keep=1, steps=1) == needed // 3


def test_the_weights_hash_sees_every_change_and_nothing_else(tmp_path):
    original = weights(1)
    reference = checkpoint.weights_hash(original)
    assert checkpoint.weights_hash(dict(reversed(original.items()))) == reference
    strided = original | {"layer.weight": original["layer.weight"].T.contiguous().T}
    assert checkpoint.weights_hash(strided) == reference
    last_bit = original["layer.weight"].clone()
    last_bit.view(torch.int32)[0, 0] ^= 1
    renamed = {f"{name}_": tensor for name, tensor in original.items()}
    reshaped = original | {"layer.weight": original["layer.weight"].reshape(4, 16)}
    retyped = original | {"layer.bias": original["layer.bias"].to(torch.int32)}
    for changed in (original | {"layer.weight": last_bit}, renamed, reshaped, retyped):
        assert checkpoint.weights_hash(changed) != reference


def test_the_weights_hash_of_a_folder_is_that_of_its_tensors_however_they_are_split(tmp_path):
    path = save(tmp_path, 1)
    assert same_weights(path, 1)
    parts = load_file(path / "model.safetensors")
    split = tmp_path / "split"
    split.mkdir()
    for index, (name, tensor) in enumerate(parts.items()):
        save_file({name: tensor}, split / f"model-{index}.safetensors")
    assert checkpoint.weights_hash(split) == checkpoint.weights_hash(path)


def test_a_folder_without_usable_weights_has_no_hash(tmp_path):
    with pytest.raises(CheckpointError, match="no tensors"):
        checkpoint.weights_hash(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a safetensors file"):
        checkpoint.weights_hash(tmp_path)


def test_a_writer_of_a_part_reads_no_file_of_another_writer(tmp_path, monkeypatch):
    """Another writer renames its temporary files at any time: one that is listed may be gone a moment later."""
    read = Path.lstat

    class FirstOfTwo(World):
        def __len__(self):
            return 2

        def together(self, compute):
            (temporary,) = tmp_path.glob(".tmp-*")
            another = temporary / ".tmpAbCdEf"
            another.touch()
            with monkeypatch.context() as patch:
                patch.setattr(Path, "lstat", lambda path: read(path.with_name("gone") if path == another else path))
                found = compute()
            another.unlink()
            return [found, {}]

    def write_part(folder):
        save_file(weights(1), folder / "model-00001-of-00002.safetensors")

    path = checkpoint.save(tmp_path, 1, write_part, state(1), FirstOfTwo())
    assert checkpoint.verify(path) == []
