"""GGUF files of tiny models, as llama.cpp's convert_hf_to_gguf.py writes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from outdo.models.gguf_header import IN_LAYER, OUTSIDE
from outdo.testing import byte_bpe_tokenizer, tiny_model

Q4_1, Q8_0, F16, F32 = (getattr(GGMLQuantizationType, name) for name in ("Q4_1", "Q8_0", "F16", "F32"))
IN_FILE = {theirs: ours for ours, theirs in (OUTSIDE | IN_LAYER).items()}
HIDDEN, HEADS, KV_HEADS, VOCABULARY = 32, 4, 2, 280


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    type: GGMLQuantizationType = Q8_0,
    values: Mapping[str, Any] = {},
    without: str = "",
    more: Mapping[str, np.ndarray] = {},
    split: str = "smollm",
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Write a model of `tiny_model`; return it, with the weights it had before they were quantised, and its tokenizer.

    The header has `values` as well. Tensors whose names contain `without` are left out, and `more` are added.
    """
    tokenizer = byte_bpe_tokenizer(["the theory of other things, and   what is there\n\nin it"], VOCABULARY)
    model, _ = tiny_model(arch=arch, hidden=HIDDEN, vocab=VOCABULARY + 8)  # rows without tokens, as in Qwen2
    writer = GGUFWriter(path, arch)
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer, split)
    for key, value in values.items():
        getattr(writer, "add_string" if isinstance(value, str) else "add_uint32")(key, value)
    for name, weight in [*_tensors(model, arch), *more.items()]:
        if not without or without not in name:
            kind = type if weight.ndim == 2 else F32
            writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, tokenizer


def _tensors(model: PreTrainedModel, arch: str) -> list[tuple[str, np.ndarray]]:
    tied, found = model.config.tie_word_embeddings, []
    for name, weight in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        stem, _, end = name.rpartition(".")
        layer, inside = stem.removeprefix("model.layers.").partition(".")[::2]
        array = weight.numpy()
        if arch == "llama" and inside.endswith(("q_proj", "k_proj")):
            array = interleaved(array, HEADS if inside.endswith("q_proj") else KV_HEADS)
        found.append((f"blk.{layer}.{IN_FILE[inside]}.{end}" if inside in IN_FILE else f"{IN_FILE[stem]}.{end}", array))
    return found


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a Llama's queries or keys in the order of llama.cpp: `permute` of its convert_hf_to_gguf.py."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _add_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerFast, split: str) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if index in special else TokenType.NORMAL for index in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
