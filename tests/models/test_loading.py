"""What is loaded can be trained as it stands, and prompts become token ids by stated rules."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig

from outdo.models.device import choose_device
from outdo.models.loading import load_classifier, load_model, load_tokenizer
from outdo.models.prompt_encoding import encode_prompt
from outdo.testing import ARCHITECTURES, byte_bpe_tokenizer, tiny_model
from outdo.utils.errors import ModelError, UserError


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "sound"
    tiny_model(folder)
    return folder


@pytest.fixture
def folder(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "model"))


def without_tokens(folder, *names):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key not in names}))


def with_bos(tokenizer):
    """Like Llama's: a BOS is put before whatever is encoded with special tokens."""
    tokenizer.add_special_tokens({"bos_token": "<|system|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|system|> $A", pair="<|system|> $A $B", special_tokens=[("<|system|>", tokenizer.bos_token_id)]
    )
    return tokenizer


# ----------------------------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_is_loaded_as_it_was_saved(arch, tmp_path):
    built, tokenizer = tiny_model(tmp_path, arch=arch)
    loaded = load_model(tmp_path)
    ids = torch.tensor([tokenizer.encode("12+34=")])
    assert torch.equal(built(ids).logits, loaded(ids).logits)
    assert load_tokenizer(tmp_path).encode("12+34=") == ids[0].tolist()


def test_dropout_is_off_even_in_training_mode(tmp_path):
    tiny_model(tmp_path, arch="gpt2")
    assert AutoConfig.from_pretrained(tmp_path).resid_pdrop > 0
    model = load_model(tmp_path).train()
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)
    assert model.config.resid_pdrop == 0


def test_weights_are_float32_and_trainable(tmp_path):
    built, tokenizer = tiny_model()
    built.to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert {(weight.dtype, weight.requires_grad) for weight in model.parameters()} == {(torch.float32, True)}


def test_a_model_that_lacks_weights_is_refused_and_not_filled_with_random_numbers(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lack 1 of the weights"):
        load_model(folder)


def test_weights_of_another_shape_are_refused(folder):
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 48}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelError, match=r"has shape \(32, 64\), and config.json requires \(32, 48\) \(6 such weights\)"
    ):
        load_model(folder)


def test_weights_that_the_config_has_no_place_for_are_refused(folder):
    """Or half of a model would be trained, and saved as the whole."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": config["layer_types"][:1], "max_window_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"11 weights that config.json has no place for, such as model.layers.1.input"):
        load_model(folder)
    with pytest.raises(ModelError, match=r"11 weights that config.json has no place for"):
        load_classifier(folder, head_seed=0)


def test_weights_that_the_config_ties_and_the_files_do_not_are_refused(folder):
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelError, match=r"lm_head.weight and model.embed_tokens.weight are stored with different values"
    ):
        load_model(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused_with_their_name(folder, value):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4:6] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj.weight holds 2 of 2,048 numbers that are not finite"):
        load_model(folder)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (torch.float64, "are stored as F64, and float32 would round them"),
        (torch.float8_e4m3fn, "are stored as F8_E4M3: such weights are quantised"),
    ],
)
def test_weights_that_float32_does_not_hold_are_refused(folder, dtype, said):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: each.to(dtype) for name, each in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        load_model(folder)


def test_an_architecture_that_transformers_does_not_know_is_refused_in_one_line(folder):
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard_of"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="unheard_of") as caught:
        load_model(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_a_device_is_chosen_with_a_reason_or_used_as_given():
    device, why = choose_device("auto")
    assert device.type in {"cpu", "cuda", "mps"}
    assert "found" in why
    assert choose_device("cpu") == (torch.device("cpu"), "as requested")
    with pytest.raises(UserError, match="'gpu7' is not usable here"):
        choose_device("gpu7")


# ------------------------------------------------------------------------------------------------------- the tokenizer


def test_a_tokenizer_without_end_token_is_refused(folder):
    without_tokens(folder, "eos_token")
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        load_tokenizer(folder)
    assert load_tokenizer(folder, stop_token_ids=[7]).eos_token_id is None


def test_tokens_beyond_the_embedding_are_refused(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["<new 1>", "<new 2>", "<new 3>", "<new 4>"])  # 261 + 4 tokens, 264 rows
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"1 token that.*'<new 4>' has the id 264"):
        load_tokenizer(folder)


# --------------------------------------------------------------------------------------------------------- the prompts


def test_the_chat_template_is_applied_once_and_opens_the_answer():
    tokenizer = byte_bpe_tokenizer([], chat=True)
    ids = encode_prompt(tokenizer, "Hi {prompt}")
    assert tokenizer.decode(ids) == "<|user|>Hi {prompt}<|end|><|assistant|>"
    assert ids == encode_prompt(tokenizer, [{"role": "user", "content": "Hi {prompt}"}])
    wanted = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi {prompt}"}], add_generation_prompt=True, return_dict=False
    )
    assert ids == wanted


def test_a_prompt_template_replaces_the_chat_template_and_reads_braces_as_text():
    tokenizer = byte_bpe_tokenizer([], chat=True)
    ids = encode_prompt(tokenizer, "{system} {x}", system="S", template="{system}|Q: {prompt}\nA:")
    assert tokenizer.decode(ids) == "S|Q: {system} {x}\nA:"


def test_a_bos_is_never_added_twice():
    plain = with_bos(byte_bpe_tokenizer([]))
    assert encode_prompt(plain, "Hi").count(plain.bos_token_id) == 1
    chat = with_bos(byte_bpe_tokenizer([], chat=True))
    chat.chat_template = "{{ bos_token }}" + chat.chat_template
    assert encode_prompt(chat, "Hi").count(chat.bos_token_id) == 1
    bos = plain.bos_token
    written = encode_prompt(plain, f"Hi {bos}", template=f"{bos}Q: {{prompt}}")
    assert written[0] == plain.bos_token_id
    assert written.count(plain.bos_token_id) == 1
    assert plain.decode(written) == f"{bos}Q: Hi {bos}"
    assert encode_prompt(plain, f"{bos}Hi").count(plain.bos_token_id) == 1
    assert encode_prompt(plain, f"{bos}Hi", special_tokens=True).count(plain.bos_token_id) == 1


def test_an_eos_that_the_tokenizer_adds_is_removed():
    tokenizer = byte_bpe_tokenizer([])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|end|>", pair="$A $B <|end|>", special_tokens=[("<|end|>", tokenizer.eos_token_id)]
    )
    assert tokenizer.decode(encode_prompt(tokenizer, "Hi")) == "Hi"
    assert tokenizer.decode(encode_prompt(tokenizer, "Hi<|end|>")) == "Hi<|end|>"


def test_a_chat_template_that_refuses_names_the_row():
    tokenizer = byte_bpe_tokenizer([], chat=True)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ModelError, match=r"train.jsonl, row 3: .*roles must alternate"):
        encode_prompt(tokenizer, "Hi", where="train.jsonl, row 3")


@pytest.mark.parametrize(
    ("prompt", "system", "template", "said"),
    [
        ("Hi", None, "Q:", "no place for {prompt}"),
        ("Hi", "S", "Q: {prompt}", "no place for {system}"),
        ("Hi", "S", None, "a system message needs a template with {system} and {prompt}: set data.template"),
        ([{"role": "user", "content": "Hi"}], None, "Q: {prompt}", "a list of messages"),
    ],
)
def test_arguments_without_effect_are_refused(prompt, system, template, said):
    with pytest.raises(UserError, match=said):
        encode_prompt(byte_bpe_tokenizer([]), prompt, system=system, template=template)
