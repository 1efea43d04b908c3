"""A GGUF file is a model: its weights are dequantised exactly, once; what cannot be converted exactly is refused."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from gguf_cases import F16, F32, HIDDEN, IN_FILE, Q4_1, Q8_0, write_gguf
from safetensors.numpy import load_file

import outdo.models.gguf_header as header_module
from outdo.models.gguf_folder import converted
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.policy import Policy
from outdo.utils.errors import ModelError

TEXTS = ("a  12\n\n3 b", "naïve 漢字 🙂\t\n", "it's  7.5", "the other  things")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outdo" / "gguf"


def probabilities(model):
    with torch.no_grad():
        return model(torch.arange(5, 25)[None]).logits.log_softmax(-1)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_weights_that_are_not_quantised_are_those_of_the_model_to_the_bit(arch, tmp_path):
    original, _ = write_gguf(tmp_path / "tiny.gguf", arch=arch, type=F32)
    loaded = load_model(tmp_path / "tiny.gguf")
    assert type(loaded) is type(original)
    expected = original.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.state_dict().items())
    torch.testing.assert_close(probabilities(loaded), probabilities(original), rtol=0, atol=1e-6)


@pytest.mark.parametrize("type", [Q4_1, Q8_0, F16], ids=lambda type: type.name)
def test_weights_are_what_gguf_dequantises(type, tmp_path):
    file = tmp_path / "tiny.gguf"
    original, _ = write_gguf(file, type=type)
    weights = load_file(converted(file) / "model.safetensors")
    stored = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(file).tensors}
    assert len(weights) == len(stored)
    layer = "model.layers.1."
    for name in ("mlp.down_proj", "self_attn.o_proj", "self_attn.v_proj"):
        assert np.array_equal(weights[f"{layer}{name}.weight"], stored[f"blk.1.{IN_FILE[name]}.weight"])
    keys = stored["blk.1.attn_k.weight"]  # of two heads of 8 rows, whose pairs of rows are neighbours
    order = [head * 8 + row for head in range(2) for row in (0, 2, 4, 6, 1, 3, 5, 7)]
    assert np.array_equal(weights[f"{layer}self_attn.k_proj.weight"], keys[order])
    assert inspect_folder(file).dequantised == type.name
    assert all(weight.dtype == np.float32 for weight in weights.values())
    error = {"Q4_1": 0.1, "Q8_0": 0.01, "F16": 1e-3}[type.name]
    assert abs(original.state_dict()[f"{layer}self_attn.k_proj.weight"].numpy() - keys[order]).max() < error


def test_transformers_dequantises_the_same_weights(tmp_path):
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tiny.gguf", type=Q4_1)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).state_dict()
    ours = load_model(tmp_path / "tiny.gguf").state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_the_facts_are_those_of_the_folder_and_no_folder_is_made_for_them(arch, tmp_path, cache):
    file = tmp_path / "tiny.gguf"
    write_gguf(file, arch=arch)
    before = inspect_folder(file)
    assert (before.folder, cache.exists()) == (None, False)
    folder = converted(file)
    assert inspect_folder(file).folder == folder
    of_folder = inspect_folder(folder)
    names = ("architecture", "model_type", "parameters", "dtype", "hidden_size", "layers", "heads", "kv_heads")
    for name in (*names, "head_dim", "vocab_size", "max_positions"):
        assert getattr(before, name) == getattr(of_folder, name), name
    assert sorted(before.layer_matrices) == sorted(of_folder.layer_matrices)


def test_the_tokenizer_is_that_of_the_model(tmp_path):
    _, expected = write_gguf(tmp_path / "tiny.gguf")
    tokenizer = load_tokenizer(tmp_path / "tiny.gguf")
    assert [tokenizer.encode(text) for text in TEXTS] == [expected.encode(text) for text in TEXTS]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == list(TEXTS)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (expected.eos_token_id, expected.pad_token_id)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def test_text_is_split_as_qwen2_splits_it(tmp_path):
    from transformers import Qwen2Tokenizer

    _, bytes_only = write_gguf(tmp_path / "tiny.gguf", arch="qwen2", split="qwen2")
    theirs = Qwen2Tokenizer(vocab=bytes_only.get_vocab(), merges=[]).backend_tokenizer
    ours = load_tokenizer(tmp_path / "tiny.gguf").backend_tokenizer
    for text in (*TEXTS, "WE'LL see\r\n\r\n  x_1"):
        assert ours.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)
        assert ours.normalizer.normalize_str("e\u0301") == theirs.normalizer.normalize_str("e\u0301") == "é"


# ------------------------------------------------------------------------------------------------------------ refusals


def refusal(file):
    with pytest.raises(ModelError) as refused:
        inspect_folder(file)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": {"llama.rope.scaling.type": "linear"}}, "its positions are scaled (rope.scaling)"),
        ({"more": {"rope_freqs.weight": np.ones(4, np.float32)}}, "it holds rope_freqs.weight, which outdo cannot"),
        ({"more": {"blk.7.ffn_up.weight": np.ones((32, 32), np.float32)}}, "it holds blk.7.ffn_up.weight, which"),
        ({"without": "token_embd"}, "it holds no embedding (token_embd.weight)"),
        ({"split": "deepseek-coder"}, "its tokenizer splits text in the way 'deepseek-coder', and outdo knows gpt-2, "),
    ],
    ids=["scaled positions", "rope_freqs", "a layer too many", "no embedding", "unknown split"],
)
def test_what_cannot_be_converted_exactly_is_refused_by_the_header(change, words, tmp_path):
    write_gguf(tmp_path / "tiny.gguf", **change)
    assert f"{tmp_path}/tiny.gguf: {words}" in refusal(tmp_path / "tiny.gguf")


def test_an_architecture_that_is_not_known_is_named(tmp_path):
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    file.write_bytes(file.read_bytes().replace(b"llama", b"mamba"))
    assert "outdo cannot convert a model of the architecture 'mamba'; it converts llama, " in refusal(file)


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path):
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    content = file.read_bytes()
    for length in (4, 9, 30, 200, 2000, len(content) // 2, len(content) - 64):
        file.write_bytes(content[:length])
        assert "the file is damaged or cut off" in refusal(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 a zip",
    ],
)
def test_a_file_that_is_no_gguf_is_refused(content, tmp_path):
    (tmp_path / "other.gguf").write_bytes(content)
    assert "this is no GGUF file" in refusal(tmp_path / "other.gguf")


def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(header_module, "find_spec", lambda name: None)
    assert refusal(tmp_path / "tiny.gguf").endswith('pip install "outdo[gguf]"')


# ---------------------------------------------------------------------------------------------------- the folder of it

CONVERT = """
import sys
from pathlib import Path
from outdo.models.gguf_folder import converted
print(converted(Path(sys.argv[1])))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


def test_processes_that_convert_one_file_at_once_get_one_whole_folder(tmp_path, cache):
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    command = [sys.executable, "-c", CONVERT, str(file)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate(timeout=600)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert {str(path) for path in cache.iterdir() if path.is_dir()} == folders
    assert len(folders) == 1


def test_a_conversion_that_fails_leaves_no_folder_and_the_next_one_works(tmp_path, cache, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(
            "outdo.models.gguf_folder.save_file", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full"))
        )
        with pytest.raises(ModelError, match="cannot be written: disk full"):
            converted(tmp_path / "tiny.gguf")
    assert not [path for path in cache.iterdir() if path.is_dir()]
    assert converted(tmp_path / "tiny.gguf").is_dir()


def test_another_file_with_the_same_name_is_another_model(tmp_path):
    file = tmp_path / "tiny.gguf"
    write_gguf(file, type=Q8_0)
    first = converted(file)
    write_gguf(file, type=Q4_1)
    assert converted(file) != first
    os.utime(file)
    assert converted(file) == converted(file.rename(tmp_path / "moved.gguf"))


def test_an_adapter_on_a_gguf_file_names_it_and_is_refused_on_another(tmp_path, cache):
    from outdo.models.adapter import adapter_config

    file, adapter = tmp_path / "tiny.gguf", tmp_path / "adapter"
    write_gguf(file)
    policy = Policy.load(file, adapter=adapter_config("lora", r=2), device="cpu")
    assert policy.model.config.hidden_size == HIDDEN
    policy.save(adapter)
    facts = inspect_folder(adapter)
    assert (facts.name, facts.adapter) == (str(file), adapter)
    for path in cache.iterdir():
        if path.is_dir():
            path.rename(tmp_path / f"gone-{path.name}")  # a cache may be emptied
    assert Policy.load(adapter, device="cpu").base == policy.base
    write_gguf(file, type=Q4_1)
    with pytest.raises(ModelError, match=r"an adapter of another base: tiny\.gguf"):
        Policy.load(adapter, device="cpu")


def test_reading_a_header_loads_no_torch(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    program = "import sys; from outdo.models.inspect_folder import inspect_folder; inspect_folder(sys.argv[1])"
    program += "; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program, tmp_path / "tiny.gguf"], timeout=600).returncode == 0
