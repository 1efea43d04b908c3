"""A model folder is judged before anything of it is loaded, and nothing in it is ever run."""

import json
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outdo.models.config_sizes import unchanged_positions
from outdo.models.inspect_folder import inspect_folder
from outdo.models.weight_headers import INDEX
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError
from outdo.utils.hub_names import is_local


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "sound"
    tiny_model(folder)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "model"))


@pytest.fixture
def sharded(folder):
    """The same model in two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / shard)
    write_index(folder, {name: shard for shard, held in shards.items() for name in held})
    return folder


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def header(content, length=None):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def refusal(name):
    with pytest.raises(ModelError) as caught:
        inspect_folder(name)
    return str(caught.value)


def test_the_facts_are_those_of_the_model(sound):
    model, _ = tiny_model()
    facts = inspect_folder(sound)
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (facts.dtype, facts.architecture, facts.model_type) == ("float32", "Qwen3ForCausalLM", "qwen3")
    assert (facts.hidden_size, facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == (32, 2, 4, 2, 8)
    assert (facts.vocab_size, facts.max_positions) == (264, 512)


def test_shards_are_added_up(sound, sharded):
    assert inspect_folder(sharded).parameters == inspect_folder(sound).parameters


def test_inspection_needs_neither_torch_nor_transformers(sound):
    look = "import sys; from outdo.models.inspect_folder import inspect_folder; inspect_folder(sys.argv[1])"
    code = f"{look}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code, sound], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "./a/b",
        "~/a",
        "a/b/c",
        "/a",
        "..",
        "a\\b",
        "",
    ],
)
def test_these_names_mean_a_folder(name):
    assert is_local(name)


def test_an_owner_and_a_name_mean_the_hub_unless_the_owner_is_a_folder_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_local("runs/first")
    assert inspect_folder("runs/first").folder is None
    (tmp_path / "runs/first_try").mkdir(parents=True)
    assert is_local("runs/first")
    assert "did you mean first_try?" in refusal("runs/first")


def test_a_missing_folder_is_reported_with_the_nearest_name(sound):
    assert "did you mean sound?" in refusal(sound.parent / "sonud")


def test_a_run_folder_points_to_its_newest_model(sound, tmp_path):
    for step in ("step_000010", "step_000020"):
        shutil.copytree(sound, tmp_path / "checkpoints" / step)
    assert "did you mean" in refusal(tmp_path)
    assert "step_000020?" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"[1]", "should be a JSON object, not a list"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_a_config_that_is_no_json_object_is_refused(folder, content, said):
    (folder / "config.json").write_bytes(content)
    assert said in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is no causal language model"),
        ({"architectures": None, "is_encoder_decoder": True}, "no causal language model"),
        ({"hidden_size": "32"}, "hidden_size should be a positive whole number, not '32'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Model"}}, "outdo never runs"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_with_the_reason(folder, changes, said):
    edit_config(folder, **changes)
    assert said in refusal(folder)


def test_code_in_the_folder_of_a_model_that_transformers_has_is_not_used(folder):
    edit_config(folder, auto_map={"AutoModelForCausalLM": "mine.Model"})
    assert inspect_folder(folder).model_type == "qwen3"


def test_all_problems_are_reported_at_once(folder):
    edit_config(folder, hidden_size=0, architectures=["BertForMaskedLM"])
    (folder / "model.safetensors").write_bytes(b"short")
    message = refusal(folder)
    assert len(message.splitlines()) == 3
    assert "hidden_size" in message
    assert "damaged" in message


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        header(b"", length=10**15),
        header(b"[" * 50_000),
        header({"a": TENSOR | {"data_offsets": [0, 800]}}) + bytes(8),
        header({"a": TENSOR | {"data_offsets": [8, 0]}}) + bytes(8),
        header({"a": TENSOR | {"shape": [2**62, 2**62]}}) + bytes(8),
        header({"a": TENSOR, "b": TENSOR}) + bytes(8),
    ],
)
def test_a_damaged_or_malicious_header_is_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refusal(folder)
    assert "is damaged" in refusal(folder)


def test_a_missing_shard_is_named(sharded):
    (sharded / "two.safetensors").unlink()
    assert "'two.safetensors', which is missing" in refusal(sharded)


def test_tensors_that_no_shard_holds_are_named(sharded):
    save_file({"other": torch.zeros(1)}, sharded / "two.safetensors")
    assert "more tensors that no file holds" in refusal(sharded)


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "..\\x",
    ],
)
def test_an_index_that_leads_out_of_the_folder_is_refused_without_opening(sharded, shard):
    save_file({"w": torch.zeros(1)}, sharded.parent / "outside.safetensors")
    write_index(sharded, {"w": shard})
    assert "leads out of the folder; it was not opened" in refusal(sharded)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "{"])
def test_a_broken_index_is_refused(sharded, content):
    (sharded / INDEX).write_text(content)
    assert INDEX in refusal(sharded)


class Trap:
    """Leaves a mark if it is ever unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_and_not_opened(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(folder / "opened")))
    message = refusal(folder)
    assert name in message
    assert "stored as pickle" in message
    assert not (folder / "opened").exists()


ROPE = {"rope_type": "longrope", "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"rope_parameters": ROPE}, 32),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 32}, 32),
        ({"rope_parameters": {"full_attention": ROPE, "sliding_attention": {"rope_type": "default"}}}, 32),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": None}}, None),
        ({"rope_parameters": {"rope_type": "default"}, "original_max_position_embeddings": 32}, None),
        ({}, None),
    ],
)
def test_longrope_is_found_for_all_layers_and_for_one_kind_of_layers(config: dict[str, object], positions: int | None):
    assert unchanged_positions(config) == positions
